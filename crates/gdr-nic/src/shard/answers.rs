//! Predicts whether a program replies to the messages of a connection immediately.

/// A request within this many polls of the engine after a message counts as a reply. Programs also look for send
/// completions before they reply.
pub(crate) const POLLS: u64 = 4;

/// The reply history of a connection, for SENDs and WRITEs that the peer wants acknowledged. Times are counted in polls
/// of the engine.
///
/// A separate acknowledgement datagram costs each end a system call, and is sent ahead of the program's reply. If the
/// program replies immediately, the acknowledgement can wait for the reply and leave with it. Connections of programs
/// that do not reply are unaffected: their peers get each acknowledgement as early as without this. (TCP's ping-pong
/// mode works the same way.)
#[derive(Debug, Default)]
pub(crate) struct Answers {
    /// The poll in which the program received a message that it has not replied to.
    given: Option<u64>,
    /// Whether it replied to the previous one.
    answered: bool,
    /// Whether it replied to the last message that it could reply to.
    expected: bool,
}

impl Answers {
    /// Records that the program receives a message, or several at once.
    pub(crate) fn give(&mut self, poll: u64) {
        self.expected = std::mem::take(&mut self.answered);
        self.given = Some(poll);
    }

    /// Records that the program sends requests.
    pub(crate) fn send(&mut self, poll: u64) {
        if let Some(given) = self.given.take() {
            self.answered = poll.saturating_sub(given) <= POLLS;
        }
    }

    /// Returns whether an immediate reply to the latest message is likely.
    pub(crate) fn are_expected(&self) -> bool {
        self.expected && self.given.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_expected_after_a_message_that_was_answered_in_time() {
        let mut answers = Answers::default();
        answers.give(10);
        assert!(!answers.are_expected(), "nothing is known");
        answers.send(10 + POLLS);
        answers.give(20);
        assert!(answers.are_expected());
        answers.send(21 + POLLS);
        assert!(!answers.are_expected(), "it was answered");
        answers.give(40);
        assert!(!answers.are_expected(), "the one before was answered late");
        answers.give(41);
        assert!(!answers.are_expected(), "the one before was not answered");
    }
}
