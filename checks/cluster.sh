# For checks that need a running cluster. Starts a cluster with the sample, in a temporary directory and on
# free ports, and stops it when the check ends. Sets $place, $host and $port.
. "$(dirname "$0")/program.sh"

# Skips the check if this program is missing.
need() {
    command -v "$1" > /dev/null || { echo "skipped: $1 is not installed"; exit 77; }
}

start_cluster() {
    place=$(mktemp -d)
    export QUORATE_DATA_DIR="$place/data"
    trap stop_cluster EXIT
    quorate up --detach --memory --port 0
    local address
    address=$(quorate status --json | sed -n 's/.*"sql":"\([^"]*\)".*/\1/p')
    host=${address%:*} port=${address##*:}
}

stop_cluster() {
    quorate down --yes > /dev/null || true
    rm -rf "$place"
}

# Fails if the two files differ, and shows the difference.
same() {
    diff -u "$1" "$2" || { echo "failed: $1 and $2 differ"; exit 1; }
}
