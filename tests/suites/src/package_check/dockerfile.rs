//! The archive's Dockerfile, as steps that run without Docker.

use anyhow::{Context, bail};

/// What a Dockerfile does to its base image.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Dockerfile {
    /// Folder in the image to which the Dockerfile's own folder is copied.
    pub(super) folder: String,
    /// Shell scripts in their order; the last is the image's command.
    pub(super) scripts: Vec<String>,
}

impl Dockerfile {
    /// Reads `ARG`, `FROM`, `COPY . FOLDER`, `RUN SCRIPT` and `CMD ["PROGRAM", "ARGUMENT"...]`.
    ///
    /// # Errors
    ///
    /// Names another instruction.
    pub(super) fn parse(text: &str) -> anyhow::Result<Self> {
        let (mut folder, mut scripts) = (None, Vec::new());
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        for line in lines.filter(|line| !line.is_empty()) {
            match line.split_once(' ') {
                Some(("ARG" | "FROM", _)) => {}
                Some(("COPY", copied)) => {
                    let to = copied.strip_prefix(". ").context(line.to_owned())?;
                    folder = Some(to.to_owned());
                }
                Some(("RUN", script)) => scripts.push(script.to_owned()),
                Some(("CMD", command)) => {
                    let words: Vec<String> =
                        serde_json::from_str(command).context(line.to_owned())?;
                    scripts.push(words.join(" "));
                }
                _ => bail!("an instruction that the check does not run: {line}"),
            }
        }
        Ok(Self {
            folder: folder.context("no COPY")?,
            scripts,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_step_is_found_and_an_unknown_one_is_refused() {
        let text = "# A comment.\nARG BASE=x\nFROM ${BASE}\n\nCOPY . /tmp/gdr\nRUN one && two\n\
                    CMD [\"gdr\", \"doctor\"]\n";
        let expected = Dockerfile {
            folder: "/tmp/gdr".to_owned(),
            scripts: vec!["one && two".to_owned(), "gdr doctor".to_owned()],
        };
        assert_eq!(Dockerfile::parse(text).unwrap(), expected);
        let error = Dockerfile::parse(&format!("{text}ADD x /y\n")).unwrap_err();
        assert!(error.to_string().contains("ADD x /y"), "{error}");
    }
}
