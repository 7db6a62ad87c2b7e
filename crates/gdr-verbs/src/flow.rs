//! Flow steering: the frames that a raw packet queue pair receives.

use std::ffi::c_int;
use std::sync::Arc;

use gdr_nic::{
    self, EthernetMatch, FlowKind, FlowRule, FlowSpec, Ipv4Match, Ipv6Match, Masked, PortMatch,
};
use gdr_verbs_sys::{
    ibv_flow, ibv_flow_attr, ibv_flow_attr_type as Kind, ibv_flow_eth_filter,
    ibv_flow_ipv4_ext_filter, ibv_flow_ipv4_filter, ibv_flow_ipv6_filter, ibv_flow_spec_eth,
    ibv_flow_spec_ipv4, ibv_flow_spec_ipv4_ext, ibv_flow_spec_ipv6, ibv_flow_spec_tcp_udp,
    ibv_flow_spec_type as Type, ibv_flow_tcp_udp_filter, ibv_qp,
};

use crate::context::Context;
use crate::domain::{Use, next_handle};
use crate::errno::Errno;
use crate::queue_pair::{NicPair, Pair};
use crate::ret::{pointer, status};
use crate::slab::CObject;
use crate::table::Table;

/// A flow. It holds no queue pair, which cannot be destroyed before it.
pub(crate) struct Flow {
    // Dropped before the objects that it uses.
    _flow: gdr_nic::Flow,
    _object: CObject<ibv_flow>,
    context: Arc<Context>,
    _pair: Use,
}

pub(crate) static FLOWS: Table<Flow> = Table::new();

impl Flow {
    pub(crate) fn is_of(&self, context: &Arc<Context>) -> bool {
        Arc::ptr_eq(&self.context, context)
    }
}

/// # Safety
/// After `attr` come as many specifications as it says, each of the size that it says.
pub(crate) unsafe extern "C" fn create_flow(
    qp: *mut ibv_qp,
    attr: *mut ibv_flow_attr,
) -> *mut ibv_flow {
    pointer(|| {
        let pair = Pair::of(qp)?;
        let NicPair::RawPackets(nic) = pair.nic() else {
            return Err(Errno::INVAL);
        };
        // SAFETY: the contract of this function.
        let rule = unsafe { rule(attr) }?;
        let flow = nic.create_flow(rule)?;
        let context = Arc::clone(pair.context());
        // SAFETY: a pointer and numbers.
        let object = unsafe {
            CObject::<ibv_flow>::new(|object| {
                object.context = context.as_ptr();
                object.handle = next_handle();
            })
        };
        let handle = object.as_ptr();
        let created = Flow {
            _flow: flow,
            _object: object,
            context,
            _pair: pair.users().add(),
        };
        FLOWS.insert(handle, Arc::new(created));
        Ok(handle)
    })
}

pub(crate) extern "C" fn destroy_flow(flow: *mut ibv_flow) -> c_int {
    status(|| FLOWS.remove(flow).map(drop))
}

/// Reads a flow.
///
/// # Safety
/// As for [`create_flow`].
unsafe fn rule(attr: *const ibv_flow_attr) -> Result<FlowRule, Errno> {
    // SAFETY: the contract of this function.
    let head = unsafe { attr.read_unaligned() };
    // No flag is supported.
    if head.comp_mask != 0 || head.flags != 0 {
        return Err(Errno::OPNOTSUPP);
    }
    let kind = match head.type_ {
        Kind::IBV_FLOW_ATTR_NORMAL => FlowKind::Normal,
        Kind::IBV_FLOW_ATTR_ALL_DEFAULT => FlowKind::AllDefault,
        Kind::IBV_FLOW_ATTR_MC_DEFAULT => FlowKind::MulticastDefault,
        Kind::IBV_FLOW_ATTR_SNIFFER => FlowKind::Sniffer,
        _ => return Err(Errno::INVAL),
    };
    if head.port != 1 || kind != FlowKind::Normal && head.num_of_specs != 0 {
        return Err(Errno::INVAL);
    }
    let mut specs = Vec::new();
    // SAFETY: the first specification follows the head.
    let mut next = unsafe { attr.add(1) }.cast::<u8>();
    for _ in 0..head.num_of_specs {
        // SAFETY: the contract of this function.
        let (spec, size) = unsafe { spec(next) }?;
        specs.push(spec);
        // SAFETY: as above; the next one follows.
        next = unsafe { next.add(size) };
    }
    Ok(FlowRule {
        kind,
        priority: head.priority,
        specs,
    })
}

/// What every specification begins with.
#[repr(C)]
#[derive(Clone, Copy)]
struct SpecHead {
    kind: Type,
    size: u16,
}

/// Reads a specification; returns its size, too.
///
/// # Safety
/// At `place` is a specification of the size that it says.
unsafe fn spec(place: *const u8) -> Result<(FlowSpec, usize), Errno> {
    // SAFETY: the contract of this function.
    let head = unsafe { place.cast::<SpecHead>().read_unaligned() };
    let size = usize::from(head.size);
    let spec = match head.kind {
        Type::IBV_FLOW_SPEC_ETH => {
            // SAFETY: the contract of this function.
            let it = unsafe { whole::<ibv_flow_spec_eth>(place, size) }?;
            FlowSpec::Ethernet(ethernet(&it.val, &it.mask))
        }
        Type::IBV_FLOW_SPEC_IPV4 => {
            // SAFETY: as above.
            let it = unsafe { whole::<ibv_flow_spec_ipv4>(place, size) }?;
            FlowSpec::Ipv4(ipv4(&it.val, &it.mask))
        }
        Type::IBV_FLOW_SPEC_IPV4_EXT => {
            // SAFETY: as above.
            let it = unsafe { whole::<ibv_flow_spec_ipv4_ext>(place, size) }?;
            FlowSpec::Ipv4(ipv4_ext(&it.val, &it.mask)?)
        }
        Type::IBV_FLOW_SPEC_IPV6 => {
            // SAFETY: as above.
            let it = unsafe { whole::<ibv_flow_spec_ipv6>(place, size) }?;
            FlowSpec::Ipv6(ipv6(&it.val, &it.mask))
        }
        Type::IBV_FLOW_SPEC_TCP | Type::IBV_FLOW_SPEC_UDP => {
            // SAFETY: as above.
            let it = unsafe { whole::<ibv_flow_spec_tcp_udp>(place, size) }?;
            let ports = ports(&it.val, &it.mask);
            match head.kind {
                Type::IBV_FLOW_SPEC_TCP => FlowSpec::Tcp(ports),
                _ => FlowSpec::Udp(ports),
            }
        }
        // Tunnels, tags, drops and counters are not supported.
        _ => return Err(Errno::OPNOTSUPP),
    };
    Ok((spec, size))
}

/// Reads a specification of a known type.
///
/// # Safety
/// `size` bytes at `place` are readable, and `T` is a structure of numbers.
unsafe fn whole<T>(place: *const u8, size: usize) -> Result<T, Errno> {
    if size < size_of::<T>() {
        return Err(Errno::INVAL);
    }
    // SAFETY: the contract of this function.
    Ok(unsafe { place.cast::<T>().read_unaligned() })
}

/// A field in network byte order.
fn half(value: u16, mask: u16) -> Masked<u16> {
    let (value, mask) = (u16::from_be(value), u16::from_be(mask));
    Masked { value, mask }
}

/// Like [`half`].
fn word(value: u32, mask: u32) -> Masked<u32> {
    let (value, mask) = (u32::from_be(value), u32::from_be(mask));
    Masked { value, mask }
}

fn byte(value: u8, mask: u8) -> Masked<u8> {
    Masked { value, mask }
}

fn mac(value: [u8; 6], mask: [u8; 6]) -> Masked<u64> {
    let number = |[a, b, c, d, e, f]: [u8; 6]| u64::from_be_bytes([0, 0, a, b, c, d, e, f]);
    Masked {
        value: number(value),
        mask: number(mask),
    }
}

fn address(value: [u8; 16], mask: [u8; 16]) -> Masked<u128> {
    Masked {
        value: u128::from_be_bytes(value),
        mask: u128::from_be_bytes(mask),
    }
}

fn ethernet(val: &ibv_flow_eth_filter, mask: &ibv_flow_eth_filter) -> EthernetMatch {
    EthernetMatch {
        destination: mac(val.dst_mac, mask.dst_mac),
        source: mac(val.src_mac, mask.src_mac),
        ether_type: half(val.ether_type, mask.ether_type),
        vlan_tag: half(val.vlan_tag, mask.vlan_tag),
    }
}

fn ipv4(val: &ibv_flow_ipv4_filter, mask: &ibv_flow_ipv4_filter) -> Ipv4Match {
    Ipv4Match {
        source: word(val.src_ip, mask.src_ip),
        destination: word(val.dst_ip, mask.dst_ip),
        ..Ipv4Match::default()
    }
}

fn ipv4_ext(
    val: &ibv_flow_ipv4_ext_filter,
    mask: &ibv_flow_ipv4_ext_filter,
) -> Result<Ipv4Match, Errno> {
    if mask.flags != 0 {
        return Err(Errno::OPNOTSUPP);
    }
    Ok(Ipv4Match {
        source: word(val.src_ip, mask.src_ip),
        destination: word(val.dst_ip, mask.dst_ip),
        protocol: byte(val.proto, mask.proto),
        type_of_service: byte(val.tos, mask.tos),
        time_to_live: byte(val.ttl, mask.ttl),
    })
}

fn ipv6(val: &ibv_flow_ipv6_filter, mask: &ibv_flow_ipv6_filter) -> Ipv6Match {
    Ipv6Match {
        source: address(val.src_ip, mask.src_ip),
        destination: address(val.dst_ip, mask.dst_ip),
        flow_label: word(val.flow_label, mask.flow_label),
        next_header: byte(val.next_hdr, mask.next_hdr),
        traffic_class: byte(val.traffic_class, mask.traffic_class),
        hop_limit: byte(val.hop_limit, mask.hop_limit),
    }
}

fn ports(val: &ibv_flow_tcp_udp_filter, mask: &ibv_flow_tcp_udp_filter) -> PortMatch {
    PortMatch {
        destination: half(val.dst_port, mask.dst_port),
        source: half(val.src_port, mask.src_port),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A flow with these specifications, without the padding in front of them.
    fn bytes(head: &ibv_flow_attr, specs: &[&[u8]]) -> Vec<u8> {
        [as_bytes(head), &specs.concat()].concat()
    }

    fn as_bytes<T>(value: &T) -> &[u8] {
        // SAFETY: a structure without padding, or whose padding came from `Default` of a static
        // layout that is only copied.
        unsafe { std::slice::from_raw_parts(std::ptr::from_ref(value).cast(), size_of::<T>()) }
    }

    fn read(head: ibv_flow_attr, specs: &[&[u8]]) -> Result<FlowRule, Errno> {
        let bytes = bytes(&head, specs);
        // SAFETY: the specifications are there as long as their sizes are true or too small.
        unsafe { rule(bytes.as_ptr().cast()) }
    }

    fn head(num_of_specs: u8) -> ibv_flow_attr {
        ibv_flow_attr {
            // As programs set it that count the head only.
            size: size_of::<ibv_flow_attr>() as u16,
            num_of_specs,
            port: 1,
            priority: 3,
            ..Default::default()
        }
    }

    fn udp() -> ibv_flow_spec_tcp_udp {
        let mut spec = ibv_flow_spec_tcp_udp {
            type_: Type::IBV_FLOW_SPEC_UDP,
            size: size_of::<ibv_flow_spec_tcp_udp>() as u16,
            ..Default::default()
        };
        spec.val.dst_port = 12345_u16.to_be();
        spec.mask.dst_port = 0xffff;
        spec
    }

    fn ipv4_spec() -> ibv_flow_spec_ipv4 {
        let mut spec = ibv_flow_spec_ipv4 {
            type_: Type::IBV_FLOW_SPEC_IPV4,
            size: size_of::<ibv_flow_spec_ipv4>() as u16,
            ..Default::default()
        };
        spec.val.dst_ip = 0x0a01_6401_u32.to_be();
        spec.mask.dst_ip = u32::MAX;
        spec
    }

    #[test]
    fn specifications_of_any_order_are_read_in_host_byte_order() {
        let read = read(head(2), &[as_bytes(&udp()), as_bytes(&ipv4_spec())]).unwrap();
        let port = Masked {
            value: 12345,
            mask: 0xffff,
        };
        let to = Masked {
            value: 0x0a01_6401,
            mask: u32::MAX,
        };
        let expected = FlowRule {
            kind: FlowKind::Normal,
            priority: 3,
            specs: vec![
                FlowSpec::Udp(PortMatch {
                    destination: port,
                    ..PortMatch::default()
                }),
                FlowSpec::Ipv4(Ipv4Match {
                    destination: to,
                    ..Ipv4Match::default()
                }),
            ],
        };
        assert_eq!(read, expected);
    }

    #[test]
    fn an_ethernet_address_has_its_first_octet_highest() {
        let mut spec = ibv_flow_spec_eth {
            type_: Type::IBV_FLOW_SPEC_ETH,
            size: size_of::<ibv_flow_spec_eth>() as u16,
            ..Default::default()
        };
        spec.val.dst_mac = [2, 0, 0, 0, 0, 1];
        spec.mask.dst_mac = [0xff; 6];
        spec.val.vlan_tag = 5_u16.to_be();
        spec.mask.vlan_tag = 0xfff_u16.to_be();
        let read = read(head(1), &[as_bytes(&spec)]).unwrap();
        let [FlowSpec::Ethernet(it)] = read.specs[..] else {
            panic!("{read:?}");
        };
        assert_eq!(it.destination.value, 0x0200_0000_0001);
        assert_eq!((it.vlan_tag.value, it.vlan_tag.mask), (5, 0xfff));
    }

    #[test]
    fn flows_that_cannot_be_kept_are_refused() {
        let udp = udp();
        let of = |head: ibv_flow_attr, spec: &ibv_flow_spec_tcp_udp| read(head, &[as_bytes(spec)]);
        assert!(of(head(1), &udp).is_ok());
        let short = ibv_flow_spec_tcp_udp { size: 15, ..udp };
        assert_eq!(of(head(1), &short), Err(Errno::INVAL));
        let tunnel = ibv_flow_spec_tcp_udp {
            type_: Type(0x50),
            ..udp
        };
        assert_eq!(of(head(1), &tunnel), Err(Errno::OPNOTSUPP));
        let other_port = ibv_flow_attr { port: 2, ..head(1) };
        assert_eq!(of(other_port, &udp), Err(Errno::INVAL));
        let sniffer = ibv_flow_attr {
            type_: Kind::IBV_FLOW_ATTR_SNIFFER,
            ..head(1)
        };
        assert_eq!(of(sniffer, &udp), Err(Errno::INVAL));
        let egress = ibv_flow_attr {
            flags: 4,
            ..head(1)
        };
        assert_eq!(of(egress, &udp), Err(Errno::OPNOTSUPP));
        let unknown = ibv_flow_attr {
            type_: Kind(9),
            ..head(1)
        };
        assert_eq!(of(unknown, &udp), Err(Errno::INVAL));
    }
}
