//! The documented rules.

use std::fs;
use std::path::Path;

use gdr_check::Rule;

/// Returns the expected table of rules.
fn rules() -> String {
    let rows = Rule::ALL.iter().map(|rule| {
        format!(
            "### `{}`\n\n{}: {}.\n\n- Why: {}.\n- Source: {}.\n- Remedy: {}.\n",
            rule.id(),
            rule.severity(),
            rule.title(),
            rule.why(),
            rule.source(),
            rule.remedy()
        )
    });
    rows.collect::<Vec<_>>().join("\n")
}

/// `cargo xtask docs` sets `GDR_WRITE_DOCS`, which writes the list instead of checking it.
#[test]
fn the_documentation_lists_every_rule() {
    const HEADING: &str = "## Every rule\n\n";
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/check.md");
    let text = fs::read_to_string(&path).unwrap();
    let (head, listed) = text.split_once(HEADING).unwrap();
    let rules = rules();
    if std::env::var_os("GDR_WRITE_DOCS").is_some() {
        fs::write(&path, format!("{head}{HEADING}{rules}")).unwrap();
        return;
    }
    assert!(
        listed == rules,
        "docs/check.md is old: run `cargo xtask docs`"
    );
}
