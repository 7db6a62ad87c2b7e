//! Messages of the kernel: what the doctor takes for a finding, a cause explains that names its rule.

use gdr_doctor::Verdict;
use gdr_explain::explain;

use self::messages::{EXAMPLES, LOST_GPU, forms};

#[path = "../../../gdr-doctor/src/checks/kernel_log/rules/messages.rs"]
mod messages;

#[test]
fn every_message_is_explained_by_a_cause_that_names_its_rule() {
    for (id, .., line) in EXAMPLES {
        let found = explain(line);
        let first = found
            .first()
            .unwrap_or_else(|| panic!("{line} is not explained"));
        let checks = first.cause.checks;
        assert!(checks.contains(id), "{line}: {}", first.cause.id);
        assert_eq!(found.len(), 1, "{line} has other causes, too");
    }
}

#[test]
fn a_message_has_the_same_cause_in_every_form() {
    for (id, .., message) in EXAMPLES {
        for printed in forms(message) {
            let explained = explain(&printed);
            let first = explained.first().map(|it| it.cause.checks);
            assert!(first.is_some_and(|checks| checks.contains(id)), "{printed}");
        }
    }
}

#[test]
fn a_record_of_several_lines_has_one_cause_in_every_form() {
    for form in 0..7 {
        let printed = LOST_GPU.map(|line| forms(line)[form].clone()).join("\n");
        assert_eq!(explain(&printed)[0].cause.id, "gpu-lost", "{printed}");
    }
}
