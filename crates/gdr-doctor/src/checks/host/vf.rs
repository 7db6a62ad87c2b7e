use crate::checks::prelude::*;

pub(super) const CHECK: Check = Check {
    id: CheckId("vf"),
    title: "NICs that are virtual functions have an identity of their own",
    why: "A virtual function of SR-IOV without a GUID cannot connect over InfiniBand. NCCL takes \
          virtual functions on one bus for one card, which folds different cards of a guest into \
          one.",
    inputs: "The link physfn in sysfs; /sys/class/infiniband/*/node_guid.",
    criteria: "skip: no NIC is a virtual function. info: one is, with a GUID. fail: its GUID is \
          zero. unknown: the GUID was not collected.",
    sources: &[
        "NCCL src/transport/net_ib/init.cc: NCCL_IB_MERGE_VFS",
        "Linux Documentation/ABI/stable/sysfs-class-infiniband: node_guid",
    ],
    workloads: Workload::RDMA,
    scope: Scope::Nic(judge),
    otherwise: Some("no NIC is a virtual function that shows itself as one"),
    ..super::CHECK
};

fn judge(context: &Context<'_>, nic: &Nic<'_>, function: &Function) -> Judgement {
    if !function.is_virtual() {
        return Err(Unjudged::OutOfScope);
    }
    let path = format!("/sys/class/infiniband/{}/node_guid", nic.name);
    let guid = match context.text(&path) {
        Ok(guid) => guid,
        absent => {
            let physical = function.physical_function.shown().to_string();
            return Ok(Finding::unknown("its GUID", &absent).evidence("physfn", physical));
        }
    };
    let finding = if guid.chars().all(|c| matches!(c, '0' | ':')) {
        Finding::fail("it is a virtual function whose GUID is zero: it cannot connect").fix(Fix::run(
            "Give it a GUID, on the host",
            "ip link set DEVICE vf NUMBER node_guid GUID; ip link set DEVICE vf NUMBER port_guid \
             GUID; then bind the virtual function again",
        ))
    } else {
        Finding::info(
            "it is a virtual function; NCCL folds those of one bus into one card unless configured otherwise",
        )
        .fix(Fix::user(
            "Keep different cards apart",
            "export NCCL_IB_MERGE_VFS=0",
        ))
    };
    Ok(finding
        .evidence(path, guid)
        .evidence("physfn", function.physical_function.shown()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::fixture::*;

    fn virtual_nic() -> MemorySource {
        example::healthy().link_to(
            &format!("/sys/bus/pci/devices/{}/physfn", example::NICS[1]),
            "../0000:19:00.1",
        )
    }

    #[test]
    fn physical_functions_are_no_question() {
        assert_eq!(verdicts(&CHECK, &example::healthy()), [Skip]);
    }

    #[test]
    fn a_virtual_function_is_reported_and_one_without_a_guid_fails() {
        assert_eq!(verdicts(&CHECK, &virtual_nic()), [Info]);
        let guid = "/sys/class/infiniband/mlx5_1/node_guid";
        let node = virtual_nic().file(guid, "0000:0000:0000:0000\n");
        assert_eq!(verdict(&CHECK, &node), Fail);
    }

    #[test]
    fn what_was_not_collected_is_unknown() {
        let node = virtual_nic().not_collected("/sys/class/infiniband/mlx5_1/node_guid");
        assert_eq!(verdict(&CHECK, &node), Unknown);
    }
}
