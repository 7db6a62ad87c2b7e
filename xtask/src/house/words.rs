//! Words that the project does not use, as the glossary lists them.
//!
//! A plain entry is found wherever it stands as a word, in any case: in comments, strings, pages
//! and as a part of an identifier (`x` in `nak_x` and in `NakX`). An entry of several
//! words is found in prose, across the end of a comment's line, and not in identifiers
//! (`Option::is_none`). An entry in backquotes is an identifier of the source, found as it is
//! written and as a whole.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, bail};
use proc_macro2::{TokenStream, TokenTree};

use super::finding::{Finding, Rule};
use super::settings::Settings;
use super::source_tree::has_extension;

/// Where the list is in the workspace, and under which heading.
pub(crate) const FILE: &str = "docs/GLOSSARY.md";
const HEADING: &str = "## Words that are not used";

/// Files that are not searched: the list itself, and the record of what was renamed.
const NOT_SEARCHED: [&str; 3] = [FILE, "CHANGELOG.md", super::settings::FILE];

/// The list.
#[derive(Debug, Default)]
pub(crate) struct Words {
    /// By the first word of the entry.
    phrases: BTreeMap<String, Vec<Phrase>>,
    /// What to use instead, by identifier.
    identifiers: BTreeMap<String, String>,
}

#[derive(Debug)]
struct Phrase {
    /// As it is listed.
    name: String,
    words: Vec<String>,
    instead: String,
}

impl Words {
    /// Reads `- word: use instead` under the heading.
    pub(crate) fn parse(glossary: &str) -> anyhow::Result<Self> {
        let mut lines = glossary.lines().enumerate();
        lines
            .find(|(_, line)| line.trim_end() == HEADING)
            .with_context(|| format!("{FILE} has no section \"{HEADING}\""))?;
        let mut list = Self::default();
        for (number, line) in lines.take_while(|(_, line)| !line.starts_with("## ")) {
            let Some(entry) = line.strip_prefix("- ") else {
                continue;
            };
            let at = || format!("{FILE}:{}", number + 1);
            let Some((name, instead)) = entry.split_once(": ") else {
                bail!("{}: not of the form \"- word: use instead\"", at());
            };
            list.add(name.trim(), instead.trim()).with_context(at)?;
        }
        if list.phrases.is_empty() && list.identifiers.is_empty() {
            bail!("{FILE}: no entry under \"{HEADING}\"");
        }
        Ok(list)
    }

    fn add(&mut self, name: &str, instead: &str) -> anyhow::Result<()> {
        if let Some(identifier) = name
            .strip_prefix('`')
            .and_then(|name| name.strip_suffix('`'))
        {
            self.identifiers
                .insert(identifier.to_owned(), instead.to_owned());
            return Ok(());
        }
        let words: Vec<_> = Tokens::of(name).map(|word| word.lower).collect();
        let first = words.first().context("an entry without a word")?.clone();
        self.phrases.entry(first).or_default().push(Phrase {
            name: name.to_owned(),
            words,
            instead: instead.to_owned(),
        });
        Ok(())
    }

    /// Searches the files.
    pub(crate) fn check<'a>(
        &self,
        files: impl Iterator<Item = (&'a Path, &'a str)>,
        settings: &Settings,
    ) -> Vec<Finding> {
        let mut findings = Vec::new();
        for (path, text) in files {
            if NOT_SEARCHED.iter().any(|name| path == Path::new(name)) {
                continue;
            }
            for found in self.search(text, has_extension(path, "rs")) {
                if !settings.allows(Rule::Words, path, Some(found.name)) {
                    let what = format!("\"{}\"; use: {}", found.name, found.instead);
                    findings.push(Finding::new(Rule::Words, path, found.line, what));
                }
            }
        }
        findings
    }

    fn search(&self, text: &str, is_rust: bool) -> Vec<Found<'_>> {
        let tokens: Vec<Token> = Tokens::of(text).collect();
        let mut found = Vec::new();
        for (at, token) in tokens.iter().enumerate() {
            let phrases = self.phrases.get(&token.lower).into_iter().flatten();
            for phrase in phrases.filter(|phrase| phrase.is_at(text, &tokens[at..])) {
                found.push(Found {
                    name: &phrase.name,
                    instead: &phrase.instead,
                    line: token.line,
                });
            }
        }
        // A file that is not Rust after all has no identifiers.
        if is_rust
            && !self.identifiers.is_empty()
            && let Ok(tokens) = text.parse()
        {
            self.search_identifiers(tokens, &mut found);
        }
        found.sort_by_key(|found| found.line);
        found
    }

    fn search_identifiers<'a>(&'a self, tokens: TokenStream, found: &mut Vec<Found<'a>>) {
        for token in tokens {
            match token {
                TokenTree::Group(group) => self.search_identifiers(group.stream(), found),
                TokenTree::Ident(ident) => {
                    if let Some((name, instead)) =
                        self.identifiers.get_key_value(&ident.to_string())
                    {
                        found.push(Found {
                            name,
                            instead,
                            line: ident.span().start().line,
                        });
                    }
                }
                _ => {}
            }
        }
    }
}

impl Phrase {
    /// Whether the tokens start with this phrase.
    fn is_at(&self, text: &str, tokens: &[Token]) -> bool {
        if tokens.len() < self.words.len() {
            return false;
        }
        let are_equal = self
            .words
            .iter()
            .zip(tokens)
            .all(|(word, token)| *word == token.lower);
        are_equal
            && tokens[..self.words.len()]
                .windows(2)
                .all(|pair| joins(&text[pair[0].end..pair[1].start]))
    }
}

/// Whether only white space, and the marks of a comment that goes on, stand between two words.
fn joins(between: &str) -> bool {
    between.contains(char::is_whitespace)
        && between
            .chars()
            .all(|c| c.is_whitespace() || matches!(c, '/' | '!' | '*' | '#' | '>' | '\\'))
}

/// A listed word in a text.
#[derive(Debug, PartialEq, Eq)]
struct Found<'a> {
    name: &'a str,
    instead: &'a str,
    line: usize,
}

/// A word, or a part of an identifier.
struct Token {
    lower: String,
    start: usize,
    end: usize,
    line: usize,
}

/// Splits a text into words, and identifiers into the words that they are made of.
struct Tokens<'a> {
    text: &'a str,
    at: usize,
    line: usize,
}

impl<'a> Tokens<'a> {
    fn of(text: &'a str) -> Self {
        Self {
            text,
            at: 0,
            line: 1,
        }
    }
}

impl<'a> Iterator for Tokens<'a> {
    type Item = Token;

    fn next(&mut self) -> Option<Token> {
        let rest = &self.text[self.at..];
        let skipped = rest.find(char::is_alphabetic)?;
        self.line += rest[..skipped].matches('\n').count();
        let start = self.at + skipped;
        let mut end = start;
        let mut letters = self.text[start..].chars().peekable();
        let mut before: Option<char> = None;
        while let Some(letter) = letters.next() {
            if !letter.is_alphabetic() {
                break;
            }
            // "nakSent" and "RDMAWrite" are two words each.
            let starts_word = letter.is_uppercase()
                && before.is_some_and(|before| {
                    before.is_lowercase() || letters.peek().is_some_and(|next| next.is_lowercase())
                });
            if starts_word {
                break;
            }
            end += letter.len_utf8();
            before = Some(letter);
        }
        self.at = end;
        Some(Token {
            lower: self.text[start..end].to_lowercase(),
            start,
            end,
            line: self.line,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GLOSSARY: &str = "\
# Glossary
- glorp: above the section

## Words that are not used

Prose between.

- zorch: send
- quux it: do it
- `Blorp`: Engine

## After
- flarn: below the section
";

    fn lines(path: &str, text: &str) -> Vec<(String, usize)> {
        let words = Words::parse(GLOSSARY).unwrap();
        let files = [(Path::new(path), text)];
        words
            .check(files.into_iter(), &Settings::default())
            .into_iter()
            .map(|finding| {
                let name = finding.what.split('"').nth(1).unwrap().to_owned();
                (name, finding.line)
            })
            .collect()
    }

    fn count(text: &str) -> usize {
        lines("a.rs", text).len()
    }

    #[test]
    fn a_word_is_found_in_prose_and_in_identifiers_and_only_whole() {
        for text in [
            "// We zorch.",
            "\"Zorch!\"",
            "fn nak_zorch()",
            "struct NakZorch;",
            "ZORCH_LIMIT",
            "RDMAZorch",
        ] {
            assert_eq!(count(text), 1, "{text}");
        }
        for text in ["zorches", "unzorch", "glorp flarn"] {
            assert_eq!(count(text), 0, "{text}");
        }
    }

    #[test]
    fn a_phrase_is_found_across_lines_of_a_comment_and_not_in_identifiers() {
        assert_eq!(
            lines("a.rs", "x\n/// We quux\n/// it."),
            [("quux it".to_owned(), 2)]
        );
        assert_eq!(count("//! quux it"), 1);
        assert_eq!(count("a \"quux \\\n   it\""), 1);
        assert_eq!(count("quux_it() quux, it. quux(it) quux/it"), 0);
    }

    #[test]
    fn an_identifier_is_found_as_it_is_written_and_only_in_rust() {
        assert_eq!(count("struct Blorp;"), 1);
        assert_eq!(count("vec![Blorp::new()]"), 1);
        assert_eq!(count("// Blorp\nfn blorp() -> BlorpKind { \"Blorp\" }"), 0);
        assert!(lines("a.md", "Blorp").is_empty());
    }

    #[test]
    fn pages_are_searched_and_the_glossary_itself_is_not() {
        assert_eq!(lines("docs/a.md", "a\n\nzorch"), [("zorch".to_owned(), 3)]);
        assert!(lines(FILE, "zorch").is_empty());
    }

    #[test]
    fn exceptions_cover_their_word_alone() {
        let settings = Settings::parse(
            "[[allow]]\nrule = \"words\"\npath = \"a.rs\"\nname = \"zorch\"\nreason = \"a name\"",
        );
        let words = Words::parse(GLOSSARY).unwrap();
        let files = [(Path::new("a.rs"), "zorch, quux it")];
        let found = words.check(files.into_iter(), &settings.unwrap());
        assert_eq!(found.len(), 1);
        assert!(found[0].what.contains("quux it"));
    }

    #[test]
    fn a_glossary_without_the_list_is_an_error() {
        assert!(Words::parse("# Glossary\n- a: b").is_err());
        assert!(Words::parse("## Words that are not used\n").is_err());
        assert!(Words::parse("## Words that are not used\n- no colon").is_err());
    }
}
