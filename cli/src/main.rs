//! The xio command.
fn main() {}
