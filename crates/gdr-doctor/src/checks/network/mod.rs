//! Checks of ports, GIDs, MTU and flow control.

use crate::check::{Check, Group, Workload};

mod bond;
mod ib_ip;
mod ib_lid;
mod ib_node_desc;
mod ib_pkey;
mod ib_sm;
mod ll_mismatch;
mod map;
mod mgmt_nic;
mod nic_fw;
mod port_flap;
mod port_rate;
mod port_state;
pub(crate) mod ports;
mod roce_counters;
mod roce_ecn;
pub(crate) mod roce_gid;
mod roce_ip;
mod roce_mtu;
mod roce_pfc;
mod roce_tos;

/// The fields that the checks of this group share.
const CHECK: Check = Check {
    group: Group::Network,
    workloads: Workload::RDMA,
    ..Check::DEFAULT
};

/// In the order of reports.
pub(super) const CHECKS: &[&Check] = &[
    &map::CHECK,
    &port_state::CHECK,
    &port_rate::CHECK,
    &port_flap::CHECK,
    &ib_sm::CHECK,
    &ib_lid::CHECK,
    &ib_pkey::CHECK,
    &ib_ip::CHECK,
    &ib_node_desc::CHECK,
    &ll_mismatch::CHECK,
    &roce_ip::CHECK,
    &roce_gid::CHECK,
    &roce_mtu::CHECK,
    &roce_pfc::CHECK,
    &roce_ecn::CHECK,
    &roce_tos::CHECK,
    &roce_counters::CHECK,
    &nic_fw::CHECK,
    &bond::CHECK,
    &mgmt_nic::CHECK,
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::fixture::*;
    use crate::runner::Scope;

    #[test]
    fn checks_of_ports_are_skipped_without_such_a_port() {
        let bare = MemorySource::new().directory("/sys/class/infiniband");
        for check in CHECKS {
            let Scope::Port(which, _) = check.scope else {
                continue;
            };
            assert_eq!(verdict(check, &bare), Skip, "{}", check.id);
            if which == ports::Which::ActiveEthernet {
                let infiniband = without_ethernet();
                assert_eq!(verdict(check, &infiniband), Skip, "{}", check.id);
            }
        }
    }
}
