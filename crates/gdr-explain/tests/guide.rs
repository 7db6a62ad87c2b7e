//! The guide's page of questions and answers.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::fs;
use std::path::Path;

use gdr_explain::causes;

/// Returns the page of questions and answers: each cause that `gdr explain` knows.
fn questions() -> String {
    let answers = causes().map(|cause| {
        // Markdown takes what is in brackets for HTML.
        let plain = |text: &str| text.replace('<', "\\<");
        let remedies = cause.remedies.iter().map(|remedy| match remedy.command {
            Some(command) => format!("- {}: `{command}`\n", plain(remedy.what)),
            None => format!("- {}\n", plain(remedy.what)),
        });
        let remedies: String = remedies.collect();
        let checks = cause.checks.join(",");
        let check = match checks.as_str() {
            "" => String::new(),
            _ => format!("\nChecked by `gdr doctor --only {checks}`.\n"),
        };
        let why = plain(cause.why);
        format!("## {}\n\n{why}\n\n{remedies}{check}", cause.title)
    });
    let answers: Vec<String> = answers.collect();
    answers.join("\n")
}

/// `cargo xtask docs` sets `GDR_WRITE_DOCS`, which writes the page in place of checking it.
#[test]
fn the_guide_answers_what_is_explained() {
    const HEAD: &str = "# What gdr explain knows\n\nThis page lists causes of errors and their remedies. `gdr explain` finds \
                        the cause of an error text or a log: `gdr explain nccl.log`.\n\n";
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/faq.md");
    let page = format!("{HEAD}{}", questions());
    if std::env::var_os("GDR_WRITE_DOCS").is_some() {
        fs::write(&path, page).unwrap();
        return;
    }
    assert!(
        fs::read_to_string(&path).unwrap_or_default() == page,
        "docs/faq.md is old: run `cargo xtask docs`"
    );
}
