//! Operations of queue pairs.

use serde::Serialize;

/// An operation that a program posts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    /// SEND of any form.
    Send,
    /// RDMA WRITE of any form.
    Write,
    /// RDMA READ.
    Read,
    /// Atomics.
    Atomic,
    /// A receive that completed.
    Receive,
}

impl Operation {
    /// All operations, in the order of their numbers.
    pub const ALL: [Self; 5] = [
        Self::Send,
        Self::Write,
        Self::Read,
        Self::Atomic,
        Self::Receive,
    ];

    /// Returns its number in trace files.
    pub const fn number(self) -> usize {
        self as usize
    }

    /// Returns its name in JSON and in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Send => "send",
            Self::Write => "write",
            Self::Read => "read",
            Self::Atomic => "atomic",
            Self::Receive => "receive",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_stand_in_the_order_of_their_numbers() {
        for (number, operation) in Operation::ALL.into_iter().enumerate() {
            assert_eq!(operation.number(), number);
            let json = serde_json::to_value(operation).unwrap();
            assert_eq!(json, operation.name());
        }
    }
}
