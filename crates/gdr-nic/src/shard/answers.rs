//! Whether a program answers the messages of a connection at once.

/// Within this many polls of the engine after a message, a request of the program answers it. Programs look
/// for completions of their sends as well before they answer.
pub(crate) const POLLS: u64 = 4;

/// What was seen of the messages of a connection, SENDs and WRITEs that the peer wants acknowledged. Times
/// are numbers of polls of the engine.
///
/// The acknowledgement of a message is a datagram of its own, which costs each end a system call, and it
/// goes before the answer of the program. If the program answers at once it can wait for the answer, and
/// leaves with it. Programs that do not answer get none of this: their peers have each acknowledgement as
/// early as without. (TCP does the same in its ping-pong mode.)
#[derive(Debug, Default)]
pub(crate) struct Answers {
    /// The poll in which the program was given a message that it has not answered.
    given: Option<u64>,
    /// Whether it answered the one before.
    answered: bool,
    /// Whether it answered the last one that it could.
    expected: bool,
}

impl Answers {
    /// The program is given a message, or several at once.
    pub(crate) fn give(&mut self, poll: u64) {
        self.expected = std::mem::take(&mut self.answered);
        self.given = Some(poll);
    }

    /// The program sends requests.
    pub(crate) fn send(&mut self, poll: u64) {
        if let Some(given) = self.given.take() {
            self.answered = poll.saturating_sub(given) <= POLLS;
        }
    }

    /// Whether the message that was given last is likely to be answered at once.
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
