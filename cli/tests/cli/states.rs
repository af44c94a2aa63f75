//! `xio states` prints the tables that are checked in: a change of the protocol's states shows in
//! review. `UPDATE_GOLDEN=1 cargo test -p xio-cli states` writes them anew.

use std::fs;
use std::path::Path;

use super::{stdout, xio};
use similar::TextDiff;

fn compare(name: &str, args: &[&str]) {
    let output = xio(args);
    assert!(output.status.success());
    let printed = stdout(&output);
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../tests/golden")
        .join(name);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(&path, &printed).expect("the file can be written");
        return;
    }
    let golden = fs::read_to_string(&path).unwrap_or_default();
    if golden != printed {
        let diff = TextDiff::from_lines(&golden, &printed);
        let diff = diff.unified_diff().header(name, "printed now").to_string();
        panic!("tests/golden/{name} is not what `xio` prints; UPDATE_GOLDEN=1 accepts it\n{diff}");
    }
}

#[test]
fn tables_are_the_golden_ones() {
    compare("states.txt", &["states"]);
}

#[test]
fn graph_is_the_golden_one() {
    compare("states.dot", &["states", "--dot"]);
}
