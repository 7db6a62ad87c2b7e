use crate::checks::prelude::*;

pub(super) const CHECK: Check = Check {
    id: CheckId("vf"),
    title: "NICs that are virtual functions have a GUID",
    why: "An SR-IOV virtual function without a GUID cannot connect over InfiniBand. NCCL treats \
          virtual functions on one bus as one card, which merges different cards of a guest.",
    inputs: "The link physfn in sysfs; /sys/class/infiniband/*/node_guid.",
    criteria: "skip: no NIC is a virtual function. info: one is, and has a GUID. fail: its GUID is \
               zero. unknown: the GUID was not collected.",
    sources: &[
        "NCCL src/transport/net_ib/init.cc: NCCL_IB_MERGE_VFS",
        "Linux Documentation/ABI/stable/sysfs-class-infiniband: node_guid",
    ],
    workloads: Workload::RDMA,
    scope: Scope::Nic(judge),
    otherwise: Some("no NIC is visibly a virtual function"),
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
    let finding =
        if guid.chars().all(|c| matches!(c, '0' | ':')) {
            Finding::fail("it is a virtual function, and its GUID is zero: it cannot connect over \
                       InfiniBand").fix(Fix::run(
            "Assign a GUID on the host",
            "ip link set DEVICE vf NUMBER node_guid GUID; ip link set DEVICE vf NUMBER port_guid \
             GUID; then rebind the virtual function",
        ))
        } else {
            Finding::info(
                "it is a virtual function; by default NCCL merges those on one bus into one card",
            )
            .fix(Fix::user(
                "Make NCCL treat them as different cards",
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
    fn physical_functions_are_skipped() {
        assert_eq!(verdicts(&CHECK, &example::healthy()), [Skip]);
    }

    #[test]
    fn a_virtual_function_is_info_and_fails_without_a_guid() {
        assert_eq!(verdicts(&CHECK, &virtual_nic()), [Info]);
        let guid = "/sys/class/infiniband/mlx5_1/node_guid";
        let node = virtual_nic().file(guid, "0000:0000:0000:0000\n");
        assert_eq!(verdict(&CHECK, &node), Fail);
    }

    #[test]
    fn an_uncollected_guid_is_unknown() {
        let node = virtual_nic().not_collected("/sys/class/infiniband/mlx5_1/node_guid");
        assert_eq!(verdict(&CHECK, &node), Unknown);
    }
}
