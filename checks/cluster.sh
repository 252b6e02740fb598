# Sourced by checks that need a running cluster: starts one with the sample, in a place of its own and on ports that are
# free, and stops it when the check ends. Sets $place, $host and $port.
. "$(dirname "$0")/program.sh"

# Skips the check unless this program is there.
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

# Fails unless the two files are equal, and shows how they differ.
same() {
    diff -u "$1" "$2" || { echo "failed: $1 and $2 differ"; exit 1; }
}
