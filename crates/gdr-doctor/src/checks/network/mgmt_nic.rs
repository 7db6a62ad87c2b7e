use super::ports::{Port, of_another_kind, ports};
use crate::checks::prelude::*;

pub(super) const CHECK: Check = Check {
    id: CheckId("mgmt.nic"),
    title: "libraries do not use RDMA devices that are not for data",
    why: "A slow management port, or an Ethernet port beside InfiniBand ports, is an RDMA device \
          like the others. A library that uses all devices also uses it, and the whole job waits \
          for it.",
    inputs: "Rate and link layer of the active ports; NCCL_IB_HCA in the environment.",
    criteria: "pass: all have one kind, or NCCL_IB_HCA excludes the others. info: some differ \
               and are not excluded. skip: fewer than two ports are active. unknown: not \
               collected.",
    sources: &[
        "NCCL user guide: NCCL_IB_HCA",
        "https://github.com/leptonai/gpud (captures of nodes with BlueField-3)",
    ],
    workloads: &[Workload::Nccl, Workload::Ucx, Workload::Nvshmem],
    scope: Scope::Node(run),
    ..super::CHECK
};

fn run(context: &Context<'_>) -> Judgement {
    let all = ports(context)?;
    if let Some(port) = all.iter().find(|port| port.port.state.is_unknown()) {
        return Ok(Finding::unknown("its state", &port.port.state).about(port.subject()));
    }
    let active: Vec<&Port<'_>> = all.iter().filter(|port| port.is_active()).collect();
    if active.len() < 2 || active.iter().all(|port| port.rate().is_none()) {
        return Err(Unjudged::skip("fewer than two ports are active"));
    }
    let odd = of_another_kind(&active);
    if odd.is_empty() {
        return Ok(Finding::pass("all active ports have one kind"));
    }
    let names: Vec<&str> = odd.iter().map(|(port, _)| port.device).collect();
    let shown = odd
        .iter()
        .map(|(port, _)| {
            let layer = port.port.link_layer.shown().to_string();
            format!("{}: {}, {layer}", port.device, port.port.rate.shown())
        })
        .collect::<Vec<_>>()
        .join("; ");
    let filter = context.text(virtual_path::ENVIRONMENT).ok();
    let filter = filter.as_deref().and_then(|text| {
        text.lines()
            .find_map(|line| line.strip_prefix("NCCL_IB_HCA="))
    });
    let left_out = |name: &&str| filter.is_some_and(|filter| !takes(filter, name));
    Ok(if names.iter().all(left_out) {
        Finding::pass(format!("NCCL_IB_HCA excludes {}", names.join(", ")))
            .evidence("NCCL_IB_HCA", filter.unwrap_or_default())
            .evidence("of another kind", shown)
    } else {
        Finding::info(match &names[..] {
            [name] => {
                format!("{name} differs in kind from the others: exclude it in libraries")
            }
            _ => format!(
                "{} differ in kind from the others: exclude them in libraries",
                names.join(", ")
            ),
        })
        .evidence("of another kind", shown)
        .fix(Fix::user(
            "Exclude them",
            format!("export NCCL_IB_HCA='^{}'", names.join(",")),
        ))
    })
}

/// Returns whether a value of NCCL_IB_HCA selects a device. Names are prefixes, unless the list
/// begins with `=`; `^` excludes the listed devices; `:1` names a port.
fn takes(filter: &str, name: &str) -> bool {
    let (excludes, list) = match filter.strip_prefix('^') {
        Some(rest) => (true, rest),
        None => (false, filter),
    };
    let (exact, list) = match list.strip_prefix('=') {
        Some(rest) => (true, rest),
        None => (false, list),
    };
    let listed = list.split(',').filter(|item| !item.is_empty()).any(|item| {
        let item = item.split(':').next().unwrap_or(item);
        if exact {
            name == item
        } else {
            name.starts_with(item)
        }
    });
    listed != excludes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::fixture::*;

    #[test]
    fn excluded_devices_and_devices_of_one_kind_pass() {
        assert_eq!(verdicts(&CHECK, &example::healthy()), [Pass]);
        assert_eq!(verdicts(&CHECK, &without_ethernet()), [Pass]);
    }

    #[test]
    fn devices_that_are_not_excluded_are_info() {
        let node = example::healthy().file(virtual_path::ENVIRONMENT, "");
        let found = judged(&CHECK, &node, Info);
        assert_eq!(
            found.fixes[0].actions[0].to_string(),
            "export NCCL_IB_HCA='^mlx5_0,mlx5_5'"
        );
    }

    #[test]
    fn the_filter_is_parsed_as_nccl_parses_it() {
        assert!(takes("mlx5", "mlx5_0") && !takes("^mlx5", "mlx5_0"));
        assert!(takes("mlx5_1", "mlx5_10") && !takes("=mlx5_1", "mlx5_10"));
        assert!(takes("^=mlx5_1:1,mlx5_2", "mlx5_10") && !takes("^=mlx5_1:1", "mlx5_1"));
    }

    #[test]
    fn an_uncollected_state_is_unknown_and_a_single_port_is_skipped() {
        let one = MemorySource::new()
            .file("/sys/class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE\n")
            .file(
                "/sys/class/infiniband/mlx5_0/ports/1/rate",
                "400 Gb/sec (4X NDR)\n",
            );
        assert_eq!(verdict(&CHECK, &one), Skip);
    }
}
