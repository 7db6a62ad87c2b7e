//! What a listening end expects of what its peer chooses.

use crate::error::PeerError;

/// A part of what the connecting end chooses.
#[derive(Clone, Copy, Debug)]
pub struct ChosenPart<T> {
    /// Its name, as the user knows it.
    pub name: &'static str,
    /// Its value in words, which differ for values that differ.
    pub value: fn(&T) -> String,
}

/// What a listening end expects of what its peer chooses: the peer has to choose the same.
#[derive(Clone, Debug)]
pub struct Expected<T> {
    ours: T,
    parts: Vec<ChosenPart<T>>,
}

impl<T> Expected<T> {
    /// Expects the choice of a peer to be as `ours` in these parts.
    pub const fn new(ours: T, parts: Vec<ChosenPart<T>>) -> Self {
        Self { ours, parts }
    }

    /// Refuses another choice.
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
