# Sourced by checks that run the program: `quorate` is the command, `tested` runs a test of the workspace by its name.
#
# Both are what `cargo test --workspace` makes. Another selection of packages would choose other features of the libraries
# they share, and compile half of them anew.
set -eu
cd "$(dirname "$0")/.."
cargo test --quiet --locked --workspace --no-run

quorate() {
    "${CARGO_TARGET_DIR:-target}/debug/quorate" "$@"
}

tested() {
    cargo test --quiet --locked --workspace --test main "$@"
}
