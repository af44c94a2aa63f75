//! Runs the program as a person would.

mod decode;
mod demo;
mod help;
mod observe;
mod replay;
mod sim;
mod states;
mod talk;

use std::process::{Command, Output};

use serde_json::Value;

/// What a run of `xio` with these arguments came to.
fn xio(args: &[&str]) -> Output {
    let output = Command::new(env!("CARGO_BIN_EXE_xio")).args(args).output();
    output.expect("the program starts")
}

/// Its standard output.
fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("UTF-8")
}

/// Its standard error.
fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("UTF-8")
}

/// The one object that a run with `--json` has on standard output.
fn json(output: &Output) -> Value {
    let text = stdout(output);
    assert_eq!(text.lines().count(), 1, "more than one line: {text}");
    serde_json::from_str(&text).expect("JSON")
}

/// Names of an object's fields, in alphabetical order.
fn fields(object: &Value) -> Vec<&str> {
    let object = object.as_object().expect("an object");
    let mut names: Vec<&str> = object.keys().map(String::as_str).collect();
    names.sort_unstable();
    names
}
