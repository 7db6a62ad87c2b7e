//! Scenarios: a seed and its rules.

use std::fmt;

use crate::error::{Place, Problem, ScenarioError};
use crate::fault::Fault;
use crate::fields::{Entry, Fields};
use crate::rule::Rule;

/// A place where a fault may strike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Site {
    /// The queue pair, numbered from 0 in the process's order of creation; 0 if the place belongs to none.
    pub queue_pair: u64,
    /// The number of the operation on the queue pair, from 0.
    pub operation: u64,
    /// The part of the operation: a packet number.
    pub part: u64,
}

/// A seed and its rules. It prints as the inline form that [`Scenario::parse`] reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scenario {
    /// The seed.
    pub seed: u64,
    /// The rules, at least one.
    pub rules: Vec<Rule>,
}

impl Scenario {
    /// Parses the inline form: rules separated by `;`, each a fault with `key=value`s, and `seed=N` among them.
    ///
    /// # Errors
    /// The first problem, with its place.
    pub fn parse(text: &str) -> Result<Self, ScenarioError> {
        let mut scenario = Self {
            seed: 0,
            rules: Vec::new(),
        };
        let parts = text.split(';').map(str::trim);
        let mut seeds = 0;
        for part in parts.filter(|part| !part.is_empty()) {
            if let Some(seed) = part.strip_prefix("seed=") {
                scenario.seed = parsed_seed(seed)?;
                seeds += 1;
                if seeds > 1 {
                    return Err(seed_error(Problem::Twice));
                }
                continue;
            }
            let number = scenario.rules.len() + 1;
            let rule = inline_rule(number, part)?;
            scenario.rules.push(rule);
        }
        scenario.checked()
    }

    /// Fails for a scenario without rules.
    pub(crate) fn checked(mut self) -> Result<Self, ScenarioError> {
        if self.rules.is_empty() {
            let place = Place {
                line: None,
                rule: None,
                key: None,
            };
            let problem = Problem::Empty;
            return Err(ScenarioError { place, problem });
        }
        let key = |rule: &Rule| {
            let text = rule.to_string();
            let bytes = text.bytes();
            bytes.fold(0_u64, |key, byte| mixed(key ^ u64::from(byte)))
        };
        let keys: Vec<_> = self.rules.iter().map(key).collect();
        for (at, rule) in self.rules.iter_mut().enumerate() {
            let alike = keys[..at].iter().filter(|key| **key == keys[at]);
            rule.key = keys[at].wrapping_add(alike.count() as u64);
        }
        Ok(self)
    }

    /// Returns whether a rule strikes here, judged by seed, share and operation. The caller checks the queue pair, the
    /// direction, and the number of strikes so far.
    pub fn strikes(&self, rule: usize, site: Site) -> bool {
        let Some(it) = self.rules.get(rule) else {
            return false;
        };
        let (first, last) = it.operations;
        if !(first..=last).contains(&site.operation) {
            return false;
        }
        if let Some(every) = it.every {
            return (site.part - first.min(site.part) + 1).is_multiple_of(every);
        }
        it.share
            .is_none_or(|share| share.has(self.draw(rule, site, 0)))
    }

    /// Returns a random number derived from the seed, the rule, the queue pair, the part and a number. The operation is
    /// not included, because after losses it may become known only later.
    pub fn draw(&self, rule: usize, site: Site, number: u64) -> u64 {
        let parts = [
            self.rules.get(rule).map_or(0, |rule| rule.key),
            site.queue_pair,
            site.part,
            number,
        ];
        parts
            .iter()
            .fold(mixed(self.seed), |state, part| mixed(state ^ mixed(*part)))
    }
}

/// Returns the finalizer of SplitMix64.
fn mixed(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

fn seed_error(problem: Problem) -> ScenarioError {
    let place = Place {
        line: None,
        rule: None,
        key: Some("seed".to_owned()),
    };
    ScenarioError { place, problem }
}

fn parsed_seed(text: &str) -> Result<u64, ScenarioError> {
    let problem = || Problem::Value {
        value: text.to_owned(),
        wanted: "a whole number below 2^64".to_owned(),
    };
    text.parse().map_err(|_| seed_error(problem()))
}

/// Returns the fault of this name.
pub(crate) fn known(
    name: &str,
    rule: usize,
    line: Option<usize>,
) -> Result<&'static str, ScenarioError> {
    let found = Fault::NAMES.iter().find(|known| **known == name);
    found.copied().ok_or_else(|| ScenarioError {
        place: Place {
            line,
            rule: Some(rule),
            key: None,
        },
        problem: Problem::UnknownFault {
            name: name.to_owned(),
            known: Fault::NAMES.to_vec(),
        },
    })
}

fn inline_rule(number: usize, text: &str) -> Result<Rule, ScenarioError> {
    let mut words = text.split_whitespace();
    let name = known(words.next().unwrap_or_default(), number, None)?;
    let entries = words.map(|word| {
        let (key, value) = word.split_once('=').ok_or_else(|| ScenarioError {
            place: Place {
                line: None,
                rule: Some(number),
                key: None,
            },
            problem: Problem::NoValue {
                word: word.to_owned(),
            },
        })?;
        Ok(Entry {
            key: key.to_owned(),
            value: value.to_owned(),
            line: None,
        })
    });
    let entries = entries.collect::<Result<_, ScenarioError>>()?;
    Rule::of(name, Fields::new(number, None, entries)?)
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seed={}", self.seed)?;
        self.rules.iter().try_for_each(|rule| write!(f, "; {rule}"))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn error(text: &str) -> String {
        Scenario::parse(text).unwrap_err().to_string()
    }

    #[test]
    fn errors_name_the_rule_the_key_the_reason_and_the_remedy() {
        for (text, expected) in [
            ("", "the scenario has no rule; give one, e.g. `drop p=1%`"),
            (
                "drop; dorp",
                "rule 2: `dorp` is not a fault; the faults are drop,",
            ),
            (
                "drop p=2",
                "rule 1, key `p`: `2` is not a share above 0, e.g. 1%, 0.5% or 0.01",
            ),
            (
                "late p=1%",
                "rule 1, key `by`: `late` needs it; add by=200us",
            ),
            (
                "hang times=3",
                "rule 1, key `times`: `hang` has no such key; its keys are qp, queue, op, p, every, max",
            ),
            ("drop qp", "rule 1: `qp` has no `=`; write key=value"),
            ("drop qp=1 qp=2", "rule 1, key `qp`: it is given twice"),
            (
                "drop p=1% every=3",
                "rule 1, key `every`: it and `p` exclude each other",
            ),
            (
                "kill",
                "rule 1, key `at`: `kill` needs it; add at=100ms or after=1M",
            ),
            (
                "seed=x; drop",
                "key `seed`: `x` is not a whole number below 2^64",
            ),
            ("seed=1; drop; seed=2", "key `seed`: it is given twice"),
            (
                "status code=BAD",
                "rule 1, key `code`: `BAD` is not one of LOC_LEN_ERR,",
            ),
        ] {
            let found = error(text);
            assert!(found.starts_with(expected), "{text}: {found}");
        }
    }

    #[test]
    fn a_rule_selects_operations() {
        let scenario = Scenario::parse("hang op=5..6; drop every=3; drop").unwrap();
        let at = |operation| Site {
            queue_pair: 0,
            operation,
            part: operation,
        };
        let struck = |rule| {
            (0..9)
                .filter(|n| scenario.strikes(rule, at(*n)))
                .collect::<Vec<_>>()
        };
        assert_eq!(struck(0), [5, 6]);
        assert_eq!(struck(1), [2, 5, 8]);
        assert_eq!(struck(2).len(), 9);
        assert!(!scenario.strikes(3, at(0)), "there is no such rule");
    }

    #[test]
    fn what_a_rule_strikes_does_not_depend_on_the_other_rules() {
        let struck = |text: &str, rule| {
            let scenario = Scenario::parse(text).unwrap();
            let site = |n| Site {
                queue_pair: 0,
                operation: n,
                part: n,
            };
            (0..500)
                .filter(|n| scenario.strikes(rule, site(*n)))
                .collect::<Vec<_>>()
        };
        let alone = struck("seed=3; hang p=5%", 0);
        assert!(!alone.is_empty());
        assert_eq!(struck("seed=3; drop p=1%; corrupt; hang p=5%", 2), alone);
    }

    #[test]
    fn another_seed_queue_pair_or_rule_strikes_elsewhere() {
        let of = |seed| Scenario::parse(&format!("seed={seed}; drop p=10%; drop p=10%")).unwrap();
        let struck = |seed, rule, queue_pair| {
            (0..500)
                .filter(|n| {
                    of(seed).strikes(
                        rule,
                        Site {
                            queue_pair,
                            operation: *n,
                            part: *n,
                        },
                    )
                })
                .collect::<Vec<_>>()
        };
        let first = struck(1, 0, 0);
        assert_eq!(first, struck(1, 0, 0));
        for other in [struck(2, 0, 0), struck(1, 1, 0), struck(1, 0, 1)] {
            assert_ne!(first, other);
        }
    }

    /// Returns a rule in the inline form, with keys that may be absent.
    fn rules() -> impl Strategy<Value = String> {
        let keys = |parts: &'static [&'static str]| {
            proptest::sample::subsequence(parts, 0..=parts.len())
                .prop_map(|keys| keys.join(" "))
                .boxed()
        };
        let packet = keys(&[
            "qp=3",
            "peer=::1",
            "of=send+ack",
            "dir=in",
            "op=4..",
            "max=9",
            "p=0.5%",
        ]);
        let completion = keys(&["qp=1", "queue=recv", "op=2..8", "every=3", "max=1"]);
        let of = |faults: &'static str, keys: BoxedStrategy<String>| (Just(faults), keys);
        prop_oneof![
            of(
                "drop|corrupt|corrupt icrc=mended|duplicate copies=4|reorder behind=2 by=3us|rate limit=10M",
                packet
            ),
            of(
                "hang|late by=1500us|burst count=3|status code=REM_OP_ERR",
                completion
            ),
            of(
                "contend|rnr times=2|cq-room room=3|slow-registration by=1s",
                keys(&["op=7"])
            ),
            of(
                "place order=reverse piece=8|place order=late",
                keys(&["of=write", "p=100%"])
            ),
            of(
                "link-down for=3ms|gid-change for=1s|kill|stop for=2s",
                keys(&["at=7ms"])
            ),
        ]
        .prop_filter("a device's fault has a time", |(faults, keys)| {
            !faults.contains("kill") || !keys.is_empty()
        })
        .prop_flat_map(|(faults, keys)| {
            let faults: Vec<_> = faults.split('|').map(str::to_owned).collect();
            proptest::sample::select(faults).prop_map(move |fault| format!("{fault} {keys}"))
        })
    }

    proptest! {
        #[test]
        fn what_a_scenario_prints_is_that_scenario(
            seed: u64,
            rules in proptest::collection::vec(rules(), 1..6),
        ) {
            let scenario = Scenario::parse(&format!("seed={seed};{}", rules.join(";"))).unwrap();
            prop_assert_eq!(scenario.rules.len(), rules.len());
            prop_assert_eq!(Scenario::parse(&scenario.to_string()).unwrap(), scenario);
        }

        #[test]
        fn no_text_panics(text in "[a-z0-9=;%. \\[\\]\n-]{0,80}") {
            let _ = Scenario::parse(&text);
        }

        #[test]
        fn a_share_is_kept(seed: u64, percent in 1_u64..=100) {
            let scenario = Scenario::parse(&format!("seed={seed}; drop p={percent}%")).unwrap();
            let site = |part| Site { queue_pair: 1, operation: 0, part };
            let struck = (0..2000).filter(|n| scenario.strikes(0, site(*n))).count();
            let expected = percent as usize * 20;
            prop_assert!(struck.abs_diff(expected) < 150, "{struck} of {expected}");
        }
    }
}
