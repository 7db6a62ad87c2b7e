//! Tables of docs/run.md that are generated from lists, for tests.

use std::fs;

use xtask_build::workspace::root;

/// Checks a table between `<!-- NAME -->` and `<!-- end of NAME -->`, or writes it if `GDR_WRITE_DOCS` is set, as by
/// `cargo xtask docs`.
pub(crate) fn check_or_write(name: &str, table: &str) {
    let [before, after] = ["", "end of "].map(|end| format!("<!-- {end}{name} -->\n"));
    let path = root().join("docs/run.md");
    let page = fs::read_to_string(&path).unwrap();
    let (head, rest) = page.split_once(&before).unwrap();
    let (listed, tail) = rest.split_once(&after).unwrap();
    if std::env::var_os("GDR_WRITE_DOCS").is_some() {
        fs::write(&path, format!("{head}{before}{table}{after}{tail}")).unwrap();
        return;
    }
    assert!(
        listed == table,
        "docs/run.md is old: run `cargo xtask docs`"
    );
}
