//! Names of objects.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The name of an object: 1 to 200 ASCII letters, digits and `-_.:/`, beginning with a letter or
/// digit. It is unique among the objects of one [`ObjectServer`](crate::ObjectServer).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ObjectName(String);

/// The text is not a valid name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{name:?} is not a valid object name: {why}; use 1 to {} ASCII letters, digits and `-_.:/`, \
     beginning with a letter or digit",
    ObjectName::LONGEST
)]
pub struct InvalidName {
    name: String,
    why: &'static str,
}

impl ObjectName {
    /// The longest name in bytes.
    pub const LONGEST: usize = 200;

    /// Creates a name, if the text is valid.
    ///
    /// # Errors
    /// [`InvalidName`].
    pub fn new(name: impl Into<String>) -> Result<Self, InvalidName> {
        let name = name.into();
        match fault(&name) {
            None => Ok(Self(name)),
            Some(why) => Err(InvalidName {
                // As much of it as an error can show.
                name: name.chars().take(Self::LONGEST).collect(),
                why,
            }),
        }
    }

    /// Returns the name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Returns why a text is not a valid name.
fn fault(name: &str) -> Option<&'static str> {
    let others = b"-_.:/";
    let first = name.bytes().next();
    if first.is_none() {
        Some("it is empty")
    } else if name.len() > ObjectName::LONGEST {
        Some("it is too long")
    } else if !name
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || others.contains(&byte))
    {
        Some("it has another character")
    } else if !first.is_some_and(|byte| byte.is_ascii_alphanumeric()) {
        Some("it begins with a punctuation character")
    } else {
        None
    }
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl FromStr for ObjectName {
    type Err = InvalidName;

    fn from_str(text: &str) -> Result<Self, InvalidName> {
        Self::new(text)
    }
}

impl TryFrom<String> for ObjectName {
    type Error = InvalidName;

    fn try_from(text: String) -> Result<Self, InvalidName> {
        Self::new(text)
    }
}

impl From<ObjectName> for String {
    fn from(name: ObjectName) -> Self {
        name.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_short_texts_without_spaces_and_control_characters() {
        let longest = "x".repeat(ObjectName::LONGEST);
        for valid in ["w", "weights", "model/layer.0:q-proj_w", "0", &longest] {
            assert_eq!(ObjectName::new(valid).unwrap().as_str(), valid);
        }
        let too_long = "x".repeat(ObjectName::LONGEST + 1);
        for bad in [
            "",
            " ",
            "a b",
            "a\n",
            "-a",
            "/a",
            "ä",
            "a\0",
            "a\u{1b}[2J",
            &too_long,
        ] {
            let error = ObjectName::new(bad).unwrap_err().to_string();
            assert!(error.chars().all(|c| !c.is_control()), "{error:?}");
            assert!(error.contains("use 1 to 200"), "{error}");
        }
    }

    #[test]
    fn a_name_of_a_message_is_checked() {
        assert!(serde_json::from_str::<ObjectName>("\"a b\"").is_err());
        let name: ObjectName = serde_json::from_str("\"a/b\"").unwrap();
        assert_eq!(serde_json::to_string(&name).unwrap(), "\"a/b\"");
    }
}
