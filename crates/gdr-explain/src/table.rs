//! The expressions that are looked for, and what each is for.

use std::sync::OnceLock;

use crate::facts::{FACTS, Fact};
use crate::matcher::Matcher;
use crate::signs::{self, Sign};
use crate::{Cause, Pattern, causes, parts};

/// The expression by which lines of channels are found; what they say is read without it.
const CHANNEL: &str = r" via (net|p2p|shm|collnet)";

/// What an expression is for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Role {
    Channel,
    /// Says what lines after it are about.
    Context,
    /// Says that other expressions do not fit its line.
    Exception,
    Cause {
        cause: usize,
        pattern: &'static Pattern,
        after: Option<usize>,
        unless: Option<usize>,
    },
    Sign {
        sign: &'static Sign,
        after: Option<usize>,
    },
    /// Says something about the machine.
    Fact(Fact),
    /// Names an operation, by its place in [`parts::WORDS`].
    Operation(usize),
    /// Says that something went wrong.
    Failure,
}

#[derive(Debug)]
pub(crate) struct Table {
    pub(crate) matcher: Matcher,
    pub(crate) roles: Vec<Role>,
    pub(crate) causes: Vec<&'static Cause>,
    /// What channels through host memory, and over sockets, speak of.
    pub(crate) staged: Option<usize>,
    pub(crate) sockets: Option<usize>,
}

impl Table {
    pub(crate) fn is_failure(&self, place: usize) -> bool {
        matches!(self.roles[place], Role::Failure)
    }

    /// Returns whether a line with these candidates may name an operation, and that it failed.
    pub(crate) fn may_be_inferred(&self, places: &[usize]) -> bool {
        let mut last = places.iter().rev();
        last.next().is_some_and(|place| self.is_failure(*place))
            && (last.next()).is_some_and(|place| matches!(self.roles[*place], Role::Operation(_)))
    }
}

/// Returns the table, which is made once.
pub(crate) fn table() -> &'static Table {
    static TABLE: OnceLock<Table> = OnceLock::new();
    TABLE.get_or_init(Table::new)
}

impl Table {
    pub(crate) fn new() -> Self {
        let causes: Vec<&'static Cause> = causes().collect();
        let mut expressions = vec![CHANNEL];
        let mut roles = vec![Role::Channel];
        let mut contexts: Vec<(&'static str, usize)> = Vec::new();
        let patterns = || {
            let with_cause = |(place, cause): (usize, &&'static Cause)| {
                cause.patterns.iter().map(move |pattern| (place, pattern))
            };
            causes.iter().enumerate().flat_map(with_cause)
        };
        let afters = patterns().filter_map(|(_, pattern)| pattern.after);
        for text in afters.chain(signs::SIGNS.iter().filter_map(|sign| sign.after)) {
            if contexts.iter().all(|(known, _)| *known != text) {
                contexts.push((text, expressions.len()));
                expressions.push(text);
                roles.push(Role::Context);
            }
        }
        let mut exceptions: Vec<(&'static str, usize)> = Vec::new();
        for text in patterns().filter_map(|(_, pattern)| pattern.unless) {
            if exceptions.iter().all(|(known, _)| *known != text) {
                exceptions.push((text, expressions.len()));
                expressions.push(text);
                roles.push(Role::Exception);
            }
        }
        let exception_of = |unless: Option<&'static str>| {
            let unless = unless?;
            let known = exceptions.iter().find(|(known, _)| *known == unless);
            known.map(|(_, place)| *place)
        };
        let place_of = |after: Option<&'static str>| {
            let after = after?;
            let known = contexts.iter().find(|(known, _)| *known == after);
            known.map(|(_, place)| *place)
        };
        for (cause, pattern) in patterns() {
            expressions.push(pattern.text);
            roles.push(Role::Cause {
                cause,
                pattern,
                after: place_of(pattern.after),
                unless: exception_of(pattern.unless),
            });
        }
        for sign in signs::SIGNS {
            expressions.push(sign.text);
            roles.push(Role::Sign {
                sign,
                after: place_of(sign.after),
            });
        }
        for (fact, text) in FACTS {
            expressions.push(text);
            roles.push(Role::Fact(*fact));
        }
        for (place, words) in parts::WORDS.iter().enumerate() {
            expressions.push(words.text);
            roles.push(Role::Operation(place));
        }
        // The last, so that it is quickly seen whether a line has it.
        expressions.push(parts::FAILURE);
        roles.push(Role::Failure);
        let of_id = |id| causes.iter().position(|cause: &&Cause| cause.id == id);
        Self {
            matcher: Matcher::new(expressions),
            roles,
            staged: of_id("gdr-unused"),
            sockets: of_id("no-rdma-device"),
            causes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pattern_is_a_regular_expression_that_has_a_literal() {
        assert_eq!(table().matcher.faults(), [""; 0]);
        // Those without one are tried only where something else has stood before.
        let roles = table().matcher.without_literals();
        let roles = roles.into_iter().map(|place| table().roles[place]);
        for role in roles {
            assert!(
                matches!(role, Role::Sign { after: Some(_), .. }),
                "{role:?}"
            );
        }
    }
}
