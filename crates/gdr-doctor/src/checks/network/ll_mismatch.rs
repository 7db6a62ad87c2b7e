use std::collections::BTreeMap;

use super::ports::ports;
use crate::checks::prelude::*;

pub(super) const CHECK: Check = Check {
    id: CheckId("ll.mismatch"),
    title: "all ports of one board type are InfiniBand, or all are Ethernet",
    why: "A VPI card is InfiniBand or Ethernet by a setting of its firmware. If cards of one type \
          differ, the setting of some was probably forgotten: jobs that use all of them fail with \
          \"incompatible devices\".",
    inputs: "/sys/class/infiniband/*/ports/*/link_layer, board_id.",
    criteria: "pass: all ports have the same link layer. info: different board types differ. warn: \
               boards of one type differ. unknown: not collected.",
    sources: &[
        "NCCL src/transport/net_ib/connect.cc: incompatible devices",
        "mlxconfig: LINK_TYPE_P1",
    ],
    scope: Scope::Node(run),
    ..super::CHECK
};

fn run(context: &Context<'_>) -> Judgement {
    let ports = ports(context)?;
    let mut layers: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut boards: BTreeMap<String, BTreeMap<String, Vec<String>>> = BTreeMap::new();
    for port in &ports {
        let Some(layer) = port.port.link_layer.as_ref().ok() else {
            return Ok(Finding::unknown(
                "whether it is InfiniBand or Ethernet",
                &port.port.link_layer,
            )
            .about(port.subject()));
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
        return Ok(Finding::warn(format!(
            "some ports of board {board} are InfiniBand and some are Ethernet"
        ))
        .evidence("link_layer", show(of_board))
        .fix(
            Fix::at_boot(
                "Set the same link layer",
                Action::run("mlxconfig -d DEVICE set LINK_TYPE_P1=1   # 1 InfiniBand, 2 Ethernet"),
            )
            .risk(Risk::Medium, "the addresses and names of the port change"),
        ));
    }
    let all = show(&layers);
    Ok(if layers.len() > 1 {
        Finding::info(
            "some boards are InfiniBand and others are Ethernet: select the devices in each job",
        )
        .evidence("link_layer", all)
    } else {
        Finding::pass("all ports have the same link layer").evidence("link_layer", all)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::fixture::*;

    const LAYER: &str = "/sys/class/infiniband/mlx5_1/ports/1/link_layer";

    #[test]
    fn one_link_layer_passes_and_different_boards_are_info() {
        assert_eq!(verdicts(&CHECK, &without_ethernet()), [Pass]);
        assert_eq!(verdicts(&CHECK, &example::healthy()), [Info]);
    }

    #[test]
    fn boards_of_one_type_that_differ_are_a_warning() {
        let node = without_ethernet().file(LAYER, "Ethernet\n");
        assert_eq!(verdict(&CHECK, &node), Warn);
    }

    #[test]
    fn an_uncollected_link_layer_is_unknown_and_a_node_without_ports_is_skipped() {
        let bare = MemorySource::new().directory("/sys/class/infiniband");
        assert_eq!(verdict(&CHECK, &bare), Skip);
    }
}
