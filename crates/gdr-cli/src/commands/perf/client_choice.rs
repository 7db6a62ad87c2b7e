//! What the client chooses for both ends, by option.

use gdr_perf::ChosenPart;
use gdr_perf::transfer::{
    Amount, AtomicKind, Direction, Repetition, Request, Striping, Verification,
};

type Value = fn(&Request) -> String;

/// Each argument with its name and its value. If a server was given one, it only serves clients that chose the same.
const CHOICES: [(&str, &str, Value); 26] = [
    ("verb", "the verb", |it| it.plan.verb.to_string()),
    ("size", "--size", sizes),
    ("all_sizes", "--all-sizes", sizes),
    ("iters", "--iters", amount),
    ("duration", "--duration", amount),
    ("endless", "--run_infinitely", |it| {
        switch(it.plan.repetition == Repetition::Endless)
    }),
    ("warm_up", "--warm-up", |it| it.plan.warm_up.to_string()),
    ("tx_depth", "--tx-depth", |it| it.plan.tx_depth.to_string()),
    ("outs", "--outs", |it| it.plan.tx_depth.to_string()),
    ("rx_depth", "--rx-depth", |it| it.plan.rx_depth.to_string()),
    ("queue_pairs", "--queue-pairs", |it| {
        it.plan.queue_pairs.to_string()
    }),
    ("stripe", "--stripe", |it| {
        switch(it.plan.striping == Striping::On)
    }),
    ("bidirectional", "--bidirectional", |it| {
        switch(it.plan.direction == Direction::BothWays)
    }),
    ("mtu", "--mtu", |it| {
        it.plan
            .mtu
            .map_or("of the path".to_owned(), |mtu| mtu.to_string())
    }),
    ("cq_mod", "--cq-mod", |it| it.plan.signal_every.to_string()),
    ("post_list", "--post-list", |it| {
        it.plan.post_list.to_string()
    }),
    ("inline", "--inline", |it| it.plan.inline.to_string()),
    ("atomic", "--atomic", |it| {
        let name = match it.plan.atomic {
            AtomicKind::FetchAdd => "FETCH_AND_ADD",
            AtomicKind::CompareSwap => "CMP_AND_SWAP",
        };
        name.to_owned()
    }),
    ("verify", "--verify", |it| {
        switch(it.plan.verify == Verification::On)
    }),
    ("min", "--min", minimum_rate),
    ("limit_bw", "--limit_bw", minimum_rate),
    ("limit_msgrate", "--limit_msgrate", |it| {
        or_none(it.thresholds.minimum_mpps.iter())
    }),
    ("max_lat", "--max-lat", |it| {
        or_none(it.thresholds.maximum_latencies.iter())
    }),
    ("qp_timeout", "--qp-timeout", |it| {
        or_none(it.plan.ack_timeout.iter())
    }),
    ("service_level", "--sl", |it| {
        it.plan.service_level.to_string()
    }),
    ("traffic_class", "--tos", |it| {
        it.plan.traffic_class.to_string()
    }),
];

/// Returns the choices, each with the argument that says it.
pub(super) fn parts() -> [(&'static str, ChosenPart<Request>); CHOICES.len()] {
    CHOICES.map(|(id, name, value)| (id, ChosenPart { name, value }))
}

fn switch(is_on: bool) -> String {
    let word = if is_on { "on" } else { "off" };
    word.to_owned()
}

fn or_none<T: ToString>(values: impl Iterator<Item = T>) -> String {
    let values: Vec<_> = values.map(|value| value.to_string()).collect();
    match values.is_empty() {
        true => "none".to_owned(),
        false => values.join(","),
    }
}

fn sizes(it: &Request) -> String {
    or_none(it.plan.sizes.iter())
}

fn minimum_rate(it: &Request) -> String {
    or_none(it.thresholds.minimum_rate.iter())
}

fn amount(it: &Request) -> String {
    match it.plan.amount {
        Amount::Iterations(messages) => format!("{messages} messages"),
        Amount::Seconds(seconds) => format!("{seconds} seconds"),
    }
}
