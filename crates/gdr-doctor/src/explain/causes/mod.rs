//! What is known, by what fails.

/// What a NIC's vendor error, syndrome or `synd`/`vend` of UCX looks like with one of these codes.
macro_rules! vendor {
    ($codes:literal) => {
        concat!(
            r"(?:vend(?:or)?(?:[ _-]?(?:err(?:or)?|synd(?:rome?)?))?|\bsyndrome?)[ =:(]*(?:",
            $codes,
            r")\b"
        )
    };
}

/// What a completion with one of these statuses looks like.
macro_rules! status {
    ($codes:literal) => {
        concat!(
            r"(?:(?:completion|\bwc\b|wc_?status|\bcqe?\b|work request|failed)\b.{0,100}\b(?:status|error)[ =:]*(?:",
            $codes,
            r")\b|\b(?:status|error)[ =:]*(?:",
            $codes,
            r")\b.{0,40}(?:opcode|vendor|wr_id))"
        )
    };
}

/// The words before libmlx5's dump of a completion, which ends with `0000` and the vendor's code.
const DUMP: &str = "got completion with error";

mod gpus;
mod libraries;
mod modules;
mod nics;
mod path;
mod pcie;
mod registration;
mod setup;
mod transport;

use super::{Cause, Pattern, Remedy, Strength};

/// Every cause.
pub fn all() -> impl Iterator<Item = &'static Cause> {
    [
        modules::CAUSES,
        registration::CAUSES,
        path::CAUSES,
        transport::CAUSES,
        setup::CAUSES,
        libraries::CAUSES,
        pcie::CAUSES,
        nics::CAUSES,
        gpus::CAUSES,
    ]
    .into_iter()
    .flatten()
}

/// A text that has no other cause.
const fn sure(text: &'static str) -> Pattern {
    Pattern {
        text,
        after: None,
        strength: Strength::Sure,
    }
}

/// A text that mostly has this cause.
const fn likely(text: &'static str) -> Pattern {
    Pattern {
        text,
        after: None,
        strength: Strength::Likely,
    }
}

/// A text that fits other causes as well.
const fn weak(text: &'static str) -> Pattern {
    Pattern {
        text,
        after: None,
        strength: Strength::Weak,
    }
}

/// A text that has this cause where something stands before it.
const fn follows(after: &'static str, text: &'static str, strength: Strength) -> Pattern {
    Pattern {
        text,
        after: Some(after),
        strength,
    }
}

/// A way out by a command or a setting.
const fn run(what: &'static str, command: &'static str) -> Remedy {
    Remedy {
        what,
        command: Some(command),
    }
}

/// A way out by hand.
const fn hand(what: &'static str) -> Remedy {
    Remedy {
        what,
        command: None,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::checks;

    #[test]
    fn every_cause_has_its_own_name_a_way_out_and_a_source() {
        let mut ids = HashSet::new();
        for cause in all() {
            assert!(ids.insert(cause.id), "{} is there twice", cause.id);
            assert!(!cause.remedies.is_empty(), "{}", cause.id);
            assert!(!cause.patterns.is_empty(), "{}", cause.id);
            assert!(!cause.sources.is_empty(), "{}", cause.id);
        }
    }

    #[test]
    fn every_check_that_would_confirm_a_cause_exists() {
        for cause in all() {
            for check in cause.checks {
                assert!(checks::find(check).is_some(), "{} names {check}", cause.id);
            }
        }
    }
}
