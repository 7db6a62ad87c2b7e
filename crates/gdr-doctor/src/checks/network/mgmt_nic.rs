use super::ports::{Port, ports};
use crate::checks::prelude::*;

pub(super) const CHECK: Check = Check {
    id: CheckId("mgmt.nic"),
    title: "libraries leave out RDMA devices that are not for data",
    why: "A slow port for management, or an Ethernet one beside InfiniBand, is an RDMA device like \
          the others. A library that uses all devices takes it too, and everything then waits for \
          it.",
    inputs: "Rate and link layer of the ports that are up; NCCL_IB_HCA in the environment.",
    criteria: "pass: all are of one kind, or NCCL_IB_HCA leaves the others out. info: some differ \
          and nothing leaves them out. skip: fewer than two ports are up. unknown: not collected.",
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
    let best = active.iter().filter_map(|port| port.rate()).max();
    let Some(best) = best.filter(|_| active.len() > 1) else {
        return Err(Unjudged::skip("fewer than two ports are up"));
    };
    let infiniband = active.iter().filter(|port| port.is_infiniband()).count();
    let mostly_infiniband = infiniband * 2 > active.len();
    let odd: Vec<&Port<'_>> = (active.into_iter())
        .filter(|port| {
            let slow = port
                .rate()
                .is_some_and(|rate| rate.saturating_mul(2) <= best);
            slow || (mostly_infiniband && port.is_ethernet())
        })
        .collect();
    if odd.is_empty() {
        return Ok(Finding::pass("ports that are up are all of one kind"));
    }
    let names: Vec<&str> = odd.iter().map(|port| port.device).collect();
    let shown = odd
        .iter()
        .map(|port| {
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
        Finding::pass(format!("NCCL_IB_HCA leaves out {}", names.join(", ")))
            .evidence("NCCL_IB_HCA", filter.unwrap_or_default())
            .evidence("of another kind", shown)
    } else {
        Finding::info(match &names[..] {
            [name] => {
                format!("{name} is of another kind than the others: libraries should leave it out")
            }
            _ => format!(
                "{} are of another kind than the others: libraries should leave them out",
                names.join(", ")
            ),
        })
        .evidence("of another kind", shown)
        .fix(Fix::user(
            "Leave them out",
            format!("export NCCL_IB_HCA=^{}", names.join(",")),
        ))
    })
}

/// Whether a value of NCCL_IB_HCA takes a device: names are beginnings unless `=` is before them,
/// `^` turns the list around, `:1` names a port.
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
    use super::super::ports::without_ethernet;
    use super::*;
    use crate::checks::fixture::*;

    #[test]
    fn devices_that_are_left_out_pass_and_so_do_equals() {
        assert_eq!(verdicts(&CHECK, &example::healthy()), [Pass]);
        assert_eq!(verdicts(&CHECK, &without_ethernet()), [Pass]);
    }

    #[test]
    fn devices_that_nothing_leaves_out_are_reported() {
        let node = example::healthy().file(virtual_path::ENVIRONMENT, "");
        let found = worst(&CHECK, &node);
        assert_eq!(found.verdict, Info);
        assert_eq!(
            found.fixes[0].actions[0].to_string(),
            "export NCCL_IB_HCA=^mlx5_0,mlx5_5"
        );
    }

    #[test]
    fn the_filter_is_read_as_nccl_reads_it() {
        assert!(takes("mlx5", "mlx5_0") && !takes("^mlx5", "mlx5_0"));
        assert!(takes("mlx5_1", "mlx5_10") && !takes("=mlx5_1", "mlx5_10"));
        assert!(takes("^=mlx5_1:1,mlx5_2", "mlx5_10") && !takes("^=mlx5_1:1", "mlx5_1"));
    }

    #[test]
    fn what_was_not_collected_is_unknown_and_one_port_is_no_question() {
        let node = example::healthy().denied("/sys/class/infiniband/mlx5_1/ports/1/state");
        assert_eq!(verdict(&CHECK, &node), Unknown);
        let one = MemorySource::new()
            .file("/sys/class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE\n")
            .file(
                "/sys/class/infiniband/mlx5_0/ports/1/rate",
                "400 Gb/sec (4X NDR)\n",
            );
        assert_eq!(verdict(&CHECK, &one), Skip);
    }
}
