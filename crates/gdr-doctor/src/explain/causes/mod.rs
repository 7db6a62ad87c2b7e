//! What is known, by what fails.

mod modules;
mod path;
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
    ]
    .into_iter()
    .flatten()
}

/// A text that has no other cause.
const fn sure(text: &'static str) -> Pattern {
    Pattern {
        text,
        strength: Strength::Sure,
    }
}

/// A text that mostly has this cause.
const fn likely(text: &'static str) -> Pattern {
    Pattern {
        text,
        strength: Strength::Likely,
    }
}

/// A text that fits other causes as well.
const fn weak(text: &'static str) -> Pattern {
    Pattern {
        text,
        strength: Strength::Weak,
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
                assert!(
                    checks::find(check.0).is_some(),
                    "{} names {check}",
                    cause.id
                );
            }
        }
    }
}
