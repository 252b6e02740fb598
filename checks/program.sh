# For checks that run the program. `quorate` runs the command, and `tested` runs a test of the workspace by
# its name.
#
# `cargo test --workspace` builds both. Another selection of packages would select other features of shared
# libraries, and Cargo would compile half of them again.
set -eu
cd "$(dirname "$0")/.."
cargo test --quiet --locked --workspace --no-run

quorate() {
    "${CARGO_TARGET_DIR:-target}/debug/quorate" "$@"
}

tested() {
    cargo test --quiet --locked --workspace --test main "$@"
}
