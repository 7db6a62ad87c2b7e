//! What a listening end requires of its peer's choice.

use crate::error::PeerError;

/// One part of the connecting end's choice.
#[derive(Clone, Copy, Debug)]
pub struct ChosenPart<T> {
    /// Name of the part, as the user knows it.
    pub name: &'static str,
    /// Formats the value. Different values have different texts.
    pub value: fn(&T) -> String,
}

/// The choice that a listening end requires its peer to make.
#[derive(Clone, Debug)]
pub struct Expected<T> {
    ours: T,
    parts: Vec<ChosenPart<T>>,
}

impl<T> Expected<T> {
    /// Requires a peer to choose the same as `ours` in these parts.
    pub const fn new(ours: T, parts: Vec<ChosenPart<T>>) -> Self {
        Self { ours, parts }
    }

    /// Refuses a different choice.
    ///
    /// # Errors
    /// [`PeerError::OtherChoice`] with the first part that differs.
    pub fn check(&self, theirs: &T) -> Result<(), PeerError> {
        for ChosenPart { name, value } in &self.parts {
            let (theirs, ours) = (value(theirs), value(&self.ours));
            if theirs != ours {
                return Err(PeerError::OtherChoice { name, theirs, ours });
            }
        }
        Ok(())
    }
}
