//! Finds and ranks the causes that a text speaks of.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use regex::{RegexSet, RegexSetBuilder};

use super::{Cause, Explanation, MAX_LINE, Match, Pattern, Strength, causes};

/// The errors of work that was queued behind what really failed.
const AFTERMATH: &str = "flush-error";

struct Table {
    patterns: RegexSet,
    /// Of each pattern its cause and its strength.
    of: Vec<(&'static Cause, Strength)>,
}

fn table() -> &'static Table {
    static TABLE: OnceLock<Table> = OnceLock::new();
    TABLE.get_or_init(|| {
        let of: Vec<(&'static Cause, &'static Pattern)> = causes()
            .flat_map(|cause| cause.patterns.iter().map(move |pattern| (cause, pattern)))
            .collect();
        let patterns = RegexSetBuilder::new(of.iter().map(|(_, pattern)| pattern.text))
            .case_insensitive(true)
            .build()
            // The patterns are ours; a test builds them.
            .unwrap_or_else(|_| RegexSet::empty());
        Table {
            patterns,
            of: (of.into_iter())
                .map(|(cause, pattern)| (cause, pattern.strength))
                .collect(),
        }
    })
}

/// The causes that a text speaks of, likeliest first.
///
/// A cause with a surer line comes first; of equals that which is spoken of first, for later
/// errors often follow from earlier ones. Errors of work that was flushed behind a failure come
/// last where anything else is there.
pub fn explain(text: &str) -> Vec<Explanation> {
    let table = table();
    let mut found: BTreeMap<&'static str, Explanation> = BTreeMap::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = cut(line);
        let mut strongest: BTreeMap<&'static str, (&'static Cause, Strength)> = BTreeMap::new();
        for index in table.patterns.matches(line) {
            let Some(&(cause, strength)) = table.of.get(index) else {
                continue;
            };
            let entry = strongest.entry(cause.id).or_insert((cause, strength));
            entry.1 = entry.1.max(strength);
        }
        for (id, (cause, strength)) in strongest {
            let explanation = found.entry(id).or_insert_with(|| Explanation {
                cause,
                matches: Vec::new(),
                lines: 0,
            });
            explanation.lines += 1;
            keep(
                &mut explanation.matches,
                Match {
                    line: number,
                    text: line.trim().to_owned(),
                    strength,
                },
            );
        }
    }
    let mut ranked: Vec<Explanation> = found.into_values().collect();
    ranked.sort_by_key(|it| {
        (
            it.cause.id == AFTERMATH,
            std::cmp::Reverse(it.strength()),
            it.matches.first().map(|first| first.line),
            std::cmp::Reverse(it.lines),
        )
    });
    ranked
}

/// Keeps the first lines, and among them one of the greatest strength.
fn keep(matches: &mut Vec<Match>, new: Match) {
    if matches.len() < Explanation::MAX_MATCHES {
        matches.push(new);
        return;
    }
    let strongest = matches.iter().map(|it| it.strength).max();
    if let (Some(last), true) = (matches.last_mut(), strongest < Some(new.strength)) {
        *last = new;
    }
}

fn cut(line: &str) -> &str {
    let mut end = line.len().min(MAX_LINE);
    while !line.is_char_boundary(end) {
        end -= 1;
    }
    &line[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pattern_is_a_regular_expression() {
        assert_eq!(table().patterns.len(), table().of.len());
    }

    #[test]
    fn flushed_work_comes_after_what_failed() {
        let found = explain(
            "NET/IB : Got completion from peer 10.0.0.2<4791> with status=5 opcode=0 len=0 vendor err 249\n\
             NET/IB : Got completion from peer 10.0.0.2<4791> with status=12 opcode=1 len=0 vendor err 129\n",
        );
        let ids: Vec<&str> = found.iter().map(|it| it.cause.id).collect();
        assert_eq!(ids, ["transport-timeout", AFTERMATH]);
    }

    #[test]
    fn a_log_of_nothing_in_particular_is_not_explained() {
        assert!(explain("all is well\n\n12345 GB/s").is_empty());
    }

    #[test]
    fn an_endless_line_is_cut_and_a_storm_is_counted() {
        let storm = "nvidia-peermem nv_get_p2p_free_callback:127 ERROR detected invalid context\n";
        let text = format!("{}\n{}", "x".repeat(MAX_LINE * 4), storm.repeat(1000));
        let found = explain(&text);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].lines, 1000);
        assert_eq!(found[0].matches.len(), Explanation::MAX_MATCHES);
        assert_eq!(found[0].matches[0].line, 2);
    }
}
