//! Tests the example of an endpoint.

#[path = "../../examples/echo.rs"]
#[allow(dead_code, reason = "its `main` is that of another program")]
mod example;

#[test]
fn what_is_said_to_the_echo_comes_back_in_order() {
    let words = ["one", "", "two"].map(String::from);
    assert_eq!(example::echoed(&words).unwrap(), words);
}
