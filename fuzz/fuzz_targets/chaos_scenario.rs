//! Scenarios of faults, inline and in TOML.

#![no_main]

use gdr_chaos::{Scenario, Site};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Err(error) = Scenario::parse_toml(text) {
        assert!(!error.to_string().is_empty());
    }
    let Ok(scenario) = Scenario::parse(text) else {
        return;
    };
    assert_eq!(
        Scenario::parse(&scenario.to_string()),
        Ok(scenario.clone()),
        "{scenario}"
    );
    for rule in 0..scenario.rules.len() {
        for part in [0, 1, u64::MAX] {
            let site = Site {
                queue_pair: part,
                operation: part,
                part,
            };
            let strikes = scenario.strikes(rule, site);
            assert_eq!(scenario.strikes(rule, site), strikes);
        }
    }
});
