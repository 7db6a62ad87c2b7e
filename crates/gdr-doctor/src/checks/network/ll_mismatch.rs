//! `ll.mismatch`: ports of one kind of board speak one language.

use std::collections::BTreeMap;

use super::ports::ports;
use crate::check::{Check, CheckId, Documentation, Group, Purpose};
use crate::context::Context;
use crate::finding::{Finding, Subject};
use crate::fix::{Action, Fix, Risk};

pub(super) const CHECK: Check = Check {
    id: CheckId("ll.mismatch"),
    group: Group::Network,
    title: "ports of one kind of board are all InfiniBand or all Ethernet",
    documentation: Documentation {
        means: "A VPI card is InfiniBand or Ethernet as its firmware is set. Where cards of one \
                kind differ, some were forgotten: jobs that use all of them fail with \
                \"incompatible devices\".",
        reads: "/sys/class/infiniband/*/ports/*/link_layer, board_id.",
        judges: "pass: all ports are the same. info: boards of different kinds differ. warn: boards \
                 of one kind differ. unknown: not collected.",
        sources: &[
            "NCCL src/transport/net_ib/connect.cc: incompatible devices",
            "mlxconfig: LINK_TYPE_P1",
        ],
    },
    purposes: Purpose::RDMA,
    symptom_of: &[],
    run,
};

fn run(context: &Context<'_>) -> Vec<Finding> {
    let ports = match ports(context) {
        Ok(ports) => ports,
        Err(why) => return why,
    };
    let mut layers: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut boards: BTreeMap<String, BTreeMap<String, Vec<String>>> = BTreeMap::new();
    for port in &ports {
        let Some(layer) = port.port.link_layer.present() else {
            return vec![Finding::unknown(
                port.subject(),
                "whether it is InfiniBand or Ethernet",
                &port.port.link_layer,
            )];
        };
        let name = port.subject().to_string();
        layers.entry(layer.clone()).or_default().push(name.clone());
        if let Some(board) = port.board(context) {
            let of_board = boards.entry(board).or_default();
            of_board.entry(layer.clone()).or_default().push(name);
        }
    }
    let show = |layers: &BTreeMap<String, Vec<String>>| {
        layers
            .iter()
            .map(|(layer, names)| format!("{layer}: {}", names.join(", ")))
            .collect::<Vec<_>>()
            .join("; ")
    };
    let mixed = boards.iter().find(|(_, layers)| layers.len() > 1);
    if let Some((board, of_board)) = mixed {
        return vec![
            Finding::warn(
                Subject::Node,
                format!("some ports of board {board} are InfiniBand and some Ethernet"),
            )
            .evidence("link_layer", show(of_board))
            .fix(
                Fix::at_boot(
                    "Set them alike",
                    Action::Command {
                        line: "mlxconfig -d DEVICE set LINK_TYPE_P1=1   # 1 InfiniBand, 2 Ethernet"
                            .into(),
                    },
                )
                .risk(
                    Risk::Medium,
                    "the port's addresses and names change with it",
                ),
            ),
        ];
    }
    let all = show(&layers);
    vec![if layers.len() > 1 {
        Finding::info(
            Subject::Node,
            "some boards are InfiniBand and others Ethernet: jobs should be told which to use",
        )
        .evidence("link_layer", all)
    } else {
        Finding::pass(Subject::Node, "all ports have one link layer").evidence("link_layer", all)
    }]
}

#[cfg(test)]
mod tests {
    use gdr_node::{MemorySource, example};

    use super::super::ports::without_ethernet;
    use super::*;
    use crate::checks::fixture::{verdict, verdicts};
    use crate::finding::Verdict;

    const LAYER: &str = "/sys/class/infiniband/mlx5_1/ports/1/link_layer";

    #[test]
    fn one_layer_passes_and_different_boards_are_told_of() {
        assert_eq!(verdicts(&CHECK, &without_ethernet()), [Verdict::Pass]);
        assert_eq!(verdicts(&CHECK, &example::healthy()), [Verdict::Info]);
    }

    #[test]
    fn boards_of_one_kind_that_differ_are_warned_of() {
        let node = without_ethernet().file(LAYER, "Ethernet\n");
        assert_eq!(verdict(&CHECK, &node), Verdict::Warn);
    }

    #[test]
    fn what_was_not_collected_is_unknown_and_no_port_is_no_question() {
        let node = example::healthy().not_collected(LAYER);
        assert_eq!(verdict(&CHECK, &node), Verdict::Unknown);
        assert_eq!(verdict(&CHECK, &MemorySource::partial()), Verdict::Unknown);
        let bare = MemorySource::new().directory("/sys/class/infiniband");
        assert_eq!(verdict(&CHECK, &bare), Verdict::Skip);
    }
}
