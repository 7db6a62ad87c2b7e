//! Steering: selecting the queue pairs that receive a frame.

use gdr_roce::Qpn;
use smallvec::SmallVec;

use super::flow::{FlowKind, FlowRule};
use super::frame::Headers;
use super::packet_socket::Membership;

/// Identifies a flow of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowId(u64);

struct Flow {
    id: FlowId,
    qpn: Qpn,
    rule: FlowRule,
}

/// The queue pairs that receive a frame, without duplicates.
pub(super) type Receivers = SmallVec<[Qpn; 4]>;

/// The flows of a device.
#[derive(Default)]
pub struct FlowTable {
    /// Sorted by priority, lowest number first.
    flows: Vec<Flow>,
    next: u64,
}

impl FlowTable {
    /// Returns whether there are no flows, so that no queue pair receives anything.
    pub fn is_empty(&self) -> bool {
        self.flows.is_empty()
    }

    /// Adds a flow for a queue pair.
    pub fn add(&mut self, qpn: Qpn, rule: FlowRule) -> FlowId {
        let id = FlowId(self.next);
        self.next += 1;
        let at = self
            .flows
            .partition_point(|flow| flow.rule.priority <= rule.priority);
        self.flows.insert(at, Flow { id, qpn, rule });
        id
    }

    /// Removes a flow.
    pub fn remove(&mut self, id: FlowId) {
        self.flows.retain(|flow| flow.id != id);
    }

    /// Removes all flows of a queue pair.
    pub fn remove_all(&mut self, qpn: Qpn) {
        self.flows.retain(|flow| flow.qpn != qpn);
    }

    /// Returns the memberships that the interface needs for these flows.
    pub fn memberships(&self) -> Vec<Membership> {
        let mut all: Vec<_> = self
            .flows
            .iter()
            .filter_map(|flow| match flow.rule.kind {
                FlowKind::Normal => flow.rule.destination().map(Membership::Address),
                FlowKind::MulticastDefault => Some(Membership::AllMulticast),
                FlowKind::AllDefault | FlowKind::Sniffer => Some(Membership::Promiscuous),
            })
            .collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Returns the queue pairs that receive a frame.
    pub fn receivers(&self, headers: &Headers) -> Receivers {
        let mut receivers = Receivers::new();
        let mut first = None;
        let mut normal = self.of(FlowKind::Normal);
        while let Some(flow) = normal.next()
            && first.is_none_or(|priority| priority == flow.rule.priority)
        {
            if flow.rule.matches(headers) {
                first = Some(flow.rule.priority);
                add(&mut receivers, flow.qpn);
            }
        }
        if first.is_none() && headers.is_multicast() {
            self.of(FlowKind::MulticastDefault)
                .for_each(|flow| add(&mut receivers, flow.qpn));
        }
        if receivers.is_empty() {
            self.of(FlowKind::AllDefault)
                .for_each(|flow| add(&mut receivers, flow.qpn));
        }
        self.of(FlowKind::Sniffer)
            .for_each(|flow| add(&mut receivers, flow.qpn));
        receivers
    }

    fn of(&self, kind: FlowKind) -> impl Iterator<Item = &Flow> {
        self.flows.iter().filter(move |flow| flow.rule.kind == kind)
    }
}

fn add(receivers: &mut Receivers, qpn: Qpn) {
    if !receivers.contains(&qpn) {
        receivers.push(qpn);
    }
}

#[cfg(test)]
mod tests {
    use super::super::flow::{ADDRESS, EthernetMatch, FlowSpec, Masked, PortMatch};
    use super::super::frame::tests::udp_v4;
    use super::*;

    const ALL: [FlowKind; 4] = [
        FlowKind::Normal,
        FlowKind::AllDefault,
        FlowKind::MulticastDefault,
        FlowKind::Sniffer,
    ];

    fn rule(kind: FlowKind, priority: u16, specs: &[FlowSpec]) -> FlowRule {
        FlowRule {
            kind,
            priority,
            specs: specs.to_vec(),
        }
    }

    fn to_port(port: u16) -> FlowSpec {
        FlowSpec::Udp(PortMatch {
            destination: Masked {
                value: port,
                mask: 0xffff,
            },
            ..PortMatch::default()
        })
    }

    fn to_address(value: u64) -> FlowSpec {
        FlowSpec::Ethernet(EthernetMatch {
            destination: Masked {
                value,
                mask: ADDRESS,
            },
            ..EthernetMatch::default()
        })
    }

    fn receivers(table: &FlowTable, frame: &[u8]) -> Vec<u32> {
        let headers = Headers::parse(frame).unwrap();
        let all = table.receivers(&headers);
        all.iter().map(|qpn| qpn.get()).collect()
    }

    fn multicast() -> Vec<u8> {
        let mut frame = udp_v4(b"payload");
        frame[0] |= 1;
        frame
    }

    #[test]
    fn no_queue_pair_receives_anything_without_a_flow() {
        assert!(receivers(&FlowTable::default(), &udp_v4(b"")).is_empty());
        let mut table = FlowTable::default();
        let id = table.add(Qpn::new(1), rule(FlowKind::Sniffer, 0, &[]));
        assert_eq!(receivers(&table, &udp_v4(b"")), [1]);
        table.remove(id);
        assert!(receivers(&table, &udp_v4(b"")).is_empty() && table.is_empty());
    }

    #[test]
    fn the_lowest_priority_number_that_matches_receives_a_frame_alone() {
        let mut table = FlowTable::default();
        table.add(Qpn::new(3), rule(FlowKind::Normal, 7, &[to_port(12345)]));
        table.add(Qpn::new(1), rule(FlowKind::Normal, 0, &[to_port(1)]));
        table.add(Qpn::new(2), rule(FlowKind::Normal, 5, &[to_port(12345)]));
        table.add(Qpn::new(4), rule(FlowKind::Normal, 5, &[to_port(12345)]));
        table.add(Qpn::new(2), rule(FlowKind::Normal, 5, &[]));
        assert_eq!(receivers(&table, &udp_v4(b"")), [2, 4]);
        table.remove_all(Qpn::new(2));
        table.remove_all(Qpn::new(4));
        assert_eq!(receivers(&table, &udp_v4(b"")), [3]);
    }

    #[test]
    fn default_flows_get_what_is_left_and_sniffers_get_all() {
        let mut table = FlowTable::default();
        for (kind, qpn) in ALL.into_iter().zip(1..) {
            let specs: &[FlowSpec] = match kind {
                FlowKind::Normal => &[to_port(12345)],
                _ => &[],
            };
            table.add(Qpn::new(qpn), rule(kind, 0, specs));
        }
        assert_eq!(receivers(&table, &udp_v4(b"")), [1, 4]);
        assert_eq!(receivers(&table, &multicast()), [1, 4]);
        table.remove_all(Qpn::new(1));
        assert_eq!(receivers(&table, &udp_v4(b"")), [2, 4]);
        assert_eq!(receivers(&table, &multicast()), [3, 4]);
        table.remove_all(Qpn::new(3));
        assert_eq!(receivers(&table, &multicast()), [2, 4]);
    }

    #[test]
    fn the_interface_receives_what_flows_ask_for_and_no_more() {
        let mut table = FlowTable::default();
        let one = 0x0200_0000_0001;
        table.add(Qpn::new(1), rule(FlowKind::Normal, 0, &[to_port(1)]));
        assert_eq!(table.memberships(), []);
        table.add(Qpn::new(1), rule(FlowKind::Normal, 0, &[to_address(one)]));
        table.add(Qpn::new(2), rule(FlowKind::Normal, 0, &[to_address(one)]));
        assert_eq!(table.memberships(), [Membership::Address(one)]);
        table.add(Qpn::new(2), rule(FlowKind::MulticastDefault, 0, &[]));
        table.add(Qpn::new(2), rule(FlowKind::Sniffer, 0, &[]));
        let all = [
            Membership::Address(one),
            Membership::AllMulticast,
            Membership::Promiscuous,
        ];
        assert_eq!(table.memberships(), all);
    }
}
