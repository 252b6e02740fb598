//! Tests the example of an endpoint.

#[path = "../../examples/echo.rs"]
#[allow(dead_code, reason = "its `main` is that of another program")]
mod example;

#[test]
fn the_echo_example_returns_words_in_order() {
    let words = ["one", "", "two"].map(String::from);
    assert_eq!(example::echoed(&words).unwrap(), words);
}
