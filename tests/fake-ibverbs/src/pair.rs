//! Queue pairs, and posting to them.

use std::ffi::c_int;
use std::net::Ipv6Addr;
use std::ptr;
use std::sync::{Condvar, OnceLock};
use std::time::Duration;

use gdr_verbs_sys::{
    IBV_LINK_LAYER_INFINIBAND, ibv_ah_attr, ibv_context, ibv_gid, ibv_pd, ibv_qp, ibv_qp_attr,
    ibv_qp_attr_mask as Mask, ibv_qp_ex, ibv_qp_init_attr, ibv_qp_init_attr_ex,
    ibv_qp_state as State, ibv_recv_wr, ibv_send_wr, ibv_wc,
};

use crate::nic::{nic, operations};
use crate::queue::{last_errno, take};
use crate::state::{DeviceId, Kind, LibraryState, lock_state};
use crate::verb::{Outcome, end, errno_of, on, outcome_of, pointer, status};

/// First number of devices that assign the lowest free one.
const FIRST_REUSED: u32 = 0x11;

pub(crate) struct Pair {
    pub(crate) device: DeviceId,
    /// Number that the program sees, and the NIC's number.
    pub(crate) number: u32,
    pub(crate) nic_number: u32,
    /// Whether small messages are written to completions.
    scatters: bool,
    state: State,
    port: u8,
    route: ibv_ah_attr,
    /// What the NIC currently does with its requests.
    traffic: Traffic,
}

/// What happens to the requests of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Traffic {
    /// They wait.
    is_held: bool,
    /// They reach the peer.
    reaches: bool,
}

impl LibraryState {
    /// Returns the number of a new queue pair.
    fn pair_number(&self, id: DeviceId, of_nic: u32) -> u32 {
        if !self.devices[id].spec.reuses_numbers {
            return of_nic;
        }
        let is_free = |number: &u32| self.pairs.values().all(|pair| pair.number != *number);
        (FIRST_REUSED..).find(is_free).unwrap_or(of_nic)
    }

    fn add_pair(&mut self, id: DeviceId, pd: *mut ibv_pd, qp: *mut ibv_qp, may_scatter: bool) {
        // SAFETY: the queue pair was just made.
        let nic_number = unsafe { (*qp).qp_num };
        let number = self.pair_number(id, nic_number);
        // SAFETY: as above.
        unsafe { (*qp).qp_num = number };
        let switched_off = std::env::var_os("MLX5_SCATTER_TO_CQE").is_some_and(|it| it == "0");
        let pair = Pair {
            device: id,
            number,
            nic_number,
            scatters: self.devices[id].spec.scatter_to_cqe && may_scatter && !switched_off,
            state: State::IBV_QPS_RESET,
            port: 0,
            route: ibv_ah_attr::default(),
            traffic: Traffic {
                is_held: false,
                reaches: false,
            },
        };
        self.add_object(Kind::Pair, qp, pd.addr());
        self.pairs.insert(qp.addr(), pair);
    }

    /// Returns whether the ports of a queue pair and of its peer are up.
    fn reaches(&self, pair: &Pair) -> bool {
        let (near, route) = (&self.devices[pair.device], &pair.route);
        if !near.port(pair.port).is_some_and(|port| near.is_up(port)) {
            return false;
        }
        // SAFETY: any bytes form a valid GID.
        let gid = unsafe { route.grh.dgid.raw };
        let devices = self.devices.iter().filter(|device| !device.gone);
        let mut ports = devices.flat_map(|it| it.spec.ports.iter().map(move |port| (it, port)));
        ports.any(|(device, port)| {
            // On InfiniBand the LID determines the port, not the GID.
            let infiniband = port.link_layer == IBV_LINK_LAYER_INFINIBAND;
            let found = match route.is_global {
                0 => infiniband,
                _ => port.gids.iter().any(|entry| entry.gid == gid),
            };
            device.is_up(port) && found && (!infiniband || route.dlid == port.lid)
        })
    }

    /// Returns the path to the NIC's device, or to an address without a host.
    fn path(&self, context: usize, route: &ibv_ah_attr, reaches: bool) -> ibv_ah_attr {
        let own = self.contexts.get(&context);
        let mut gid = own.map_or(ibv_gid { raw: [0; 16] }, |context| context.gid);
        if !reaches {
            // SAFETY: any bytes form a valid GID.
            let address = Ipv6Addr::from(unsafe { gid.raw }).to_ipv4_mapped();
            let [a, _, c, d] = address.map_or([127, 0, 0, 1], |own| own.octets());
            let nowhere = std::net::Ipv4Addr::new(a, 2, c, d);
            gid.raw = nowhere.to_ipv6_mapped().octets();
        }
        let mut path = *route;
        path.is_global = 1;
        path.port_num = 1;
        path.dlid = 0;
        path.grh.dgid = gid;
        path.grh.sgid_index = 0;
        path
    }

    /// Updates the traffic of all queue pairs according to the devices, ports and requests of the test.
    pub(crate) fn direct_traffic(&mut self) {
        let addresses: Vec<usize> = self.pairs.keys().copied().collect();
        for address in addresses {
            let pair = &self.pairs[&address];
            if pair.state != State::IBV_QPS_RTS {
                continue;
            }
            let reaches = self.reaches(pair);
            let device = &self.devices[pair.device];
            let port = device.port(pair.port);
            let is_held = device.held && port.is_some_and(|port| device.is_up(port));
            let (was, wanted) = (pair.traffic, Traffic { is_held, reaches });
            if was == wanted {
                continue;
            }
            let context = self.objects.get(&address).map_or(0, |it| it.context);
            let path = self.path(context, &pair.route, reaches);
            if !was.is_held {
                change(address, State::IBV_QPS_SQD, None);
            }
            if was.reaches != reaches {
                change(address, State::IBV_QPS_SQD, Some(path));
            }
            if !is_held {
                change(address, State::IBV_QPS_RTS, None);
            }
            if let Some(pair) = self.pairs.get_mut(&address) {
                pair.traffic = wanted;
            }
        }
    }

    /// Changes the state to ERR: the NIC flushes all posted requests.
    pub(crate) fn break_pair(&mut self, address: usize) {
        if let Some(pair) = self.pairs.get_mut(&address)
            && pair.state != State::IBV_QPS_RESET
        {
            pair.state = State::IBV_QPS_ERR;
            change(address, State::IBV_QPS_ERR, None);
        }
    }

    /// Checks that the path of a connection exists.
    fn check_path(&self, pair: &Pair, attr: &ibv_qp_attr) -> Outcome<()> {
        let port = self.devices[pair.device].port(pair.port);
        let port = port.ok_or(libc::EINVAL)?;
        let route = &attr.ah_attr;
        let has_gid = || {
            let index = u32::from(route.grh.sgid_index);
            port.gids.iter().any(|gid| gid.index == index)
        };
        let exists = match route.is_global {
            0 => port.link_layer == IBV_LINK_LAYER_INFINIBAND,
            _ => has_gid(),
        };
        match exists && attr.path_mtu.0 <= port.active_mtu {
            true => Ok(()),
            false => Err(libc::EINVAL),
        }
    }
}

/// Changes the state of a NIC queue pair, or its path in SQD. A queue pair in another state stays unchanged, because
/// the NIC has ended its connection.
fn change(address: usize, to: State, path: Option<ibv_ah_attr>) {
    let mut attr = ibv_qp_attr {
        qp_state: to,
        ah_attr: path.unwrap_or_default(),
        ..Default::default()
    };
    let mask = match path {
        Some(_) => Mask::IBV_QP_STATE | Mask::IBV_QP_AV,
        None => Mask::IBV_QP_STATE,
    };
    let qp = ptr::with_exposed_provenance_mut(address);
    // SAFETY: the queue pair is alive while it is in the table.
    let _refused = unsafe { nic().ibv_modify_qp(qp, &mut attr, mask.0 as c_int) };
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_qp(pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    pointer(|| {
        on((Kind::Domain, pd), "ibv_create_qp", "", |library, id| {
            // SAFETY: the contract of this function.
            let made = unsafe { nic().ibv_create_qp(pd, attr) };
            let qp = made.map_err(errno_of)?.as_ptr();
            library.add_pair(id, pd, qp, true);
            Ok(qp)
        })
    })
}

pub(crate) unsafe extern "C" fn create_qp_ex(
    context: *mut ibv_context,
    attr: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    // SAFETY: the contract of this function.
    pointer(|| unsafe { create_extended("ibv_create_qp_ex", context, attr, true) })
}

/// # Safety
///
/// `attr` is readable and writable.
pub(crate) unsafe fn create_extended(
    verb: &str,
    context: *mut ibv_context,
    attr: *mut ibv_qp_init_attr_ex,
    may_scatter: bool,
) -> Outcome<*mut ibv_qp> {
    on((Kind::Context, context), verb, "", |library, id| {
        let create = operations().create_qp_ex.ok_or(libc::EOPNOTSUPP)?;
        // SAFETY: the contract of this function.
        let (qp, pd) = unsafe { (create(context, attr), (*attr).pd) };
        if qp.is_null() {
            return Err(last_errno());
        }
        library.add_pair(id, pd, qp, may_scatter);
        // SAFETY: the queue pair was just made.
        if let Ok(extended) = unsafe { nic().ibv_qp_to_qp_ex(qp) } {
            // SAFETY: as above: no other thread has it.
            let complete = unsafe { &mut (*extended.as_ptr()).wr_complete };
            if let Some(complete) = complete.replace(wr_complete) {
                WR_COMPLETE.get_or_init(|| complete);
            }
        }
        Ok(qp)
    })
}

#[unsafe(no_mangle)]
extern "C" fn ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex {
    pointer(|| {
        lock_state().object("ibv_qp_to_qp_ex", Kind::Pair, qp.addr())?;
        // SAFETY: the queue pair is alive.
        let extended = unsafe { nic().ibv_qp_to_qp_ex(qp) };
        Ok(extended.map_err(errno_of)?.as_ptr())
    })
}

#[unsafe(no_mangle)]
extern "C" fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int {
    let (verb, address) = ("ibv_destroy_qp", qp.addr());
    status(|| {
        keep_completions(qp);
        let (device, pair) = {
            let mut library = lock_state();
            let device = library.object(verb, Kind::Pair, address)?.device;
            // Its number becomes free before the report stops listing it.
            (device, library.pairs.remove(&address))
        };
        // SAFETY: the program destroys it once.
        let ended = end(Kind::Pair, verb, qp, "", |nic| unsafe {
            nic.ibv_destroy_qp(qp)
        });
        let mut library = lock_state();
        if let (Err(errno), Some(pair)) = (ended, pair) {
            library.pairs.insert(address, pair);
            return Err(errno);
        }
        library.forget_events(verb, address);
        drop(library);
        wait_for_release(device);
        Ok(())
    })
}

/// Keeps the completions of a queue pair that is being destroyed, if the device does so.
fn keep_completions(qp: *mut ibv_qp) {
    let mut library = lock_state();
    let pair = library.pairs.get(&qp.addr());
    if !pair.is_some_and(|pair| library.devices[pair.device].spec.keeps_completions) {
        return;
    }
    library.break_pair(qp.addr());
    // SAFETY: the queue pair is alive.
    let queue = unsafe { (*qp).send_cq };
    let mut wc = ibv_wc::default();
    // SAFETY: there is room for one.
    while unsafe { take(queue, 1, &mut wc) } == Ok(1) {
        library.change(&mut wc);
        library.kept.entry(queue.addr()).or_default().push_back(wc);
    }
}

/// Notified when blocked calls that destroyed queue pairs may continue.
pub(crate) static RELEASED: Condvar = Condvar::new();

/// Maximum time that they block.
const LIMIT: Duration = Duration::from_secs(20);

fn wait_for_release(id: DeviceId) {
    let is_detained = |library: &mut LibraryState| library.devices[id].detains;
    // A panic of another test is reported there.
    drop(RELEASED.wait_timeout_while(lock_state(), LIMIT, is_detained));
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int {
    // SAFETY: the contract of this function.
    let attr = unsafe { attr.read() };
    status(|| modify(qp, attr, Mask(mask as u32)))
}

fn modify(qp: *mut ibv_qp, attr: ibv_qp_attr, mask: Mask) -> Outcome<()> {
    let (verb, address) = ("ibv_modify_qp", qp.addr());
    let mut library = lock_state();
    let object = library.object(verb, Kind::Pair, address)?;
    let id = object.device;
    let Some(pair) = library.pairs.get(&address) else {
        return Err(libc::EINVAL);
    };
    let to = match mask.contains(Mask::IBV_QP_STATE) {
        true => attr.qp_state,
        false => pair.state,
    };
    let name = to.name().and_then(|name| name.strip_prefix("IBV_QPS_"));
    let name = name.unwrap_or("?");
    let detail = format!("to {name}, mask {:#x}", mask.0);
    match to {
        State::IBV_QPS_RESET | State::IBV_QPS_ERR => library.note(verb, id, detail)?,
        _ => library.begin(verb, id, detail)?,
    }
    let device = &mut library.devices[id];
    device.check_refusals(&format!("{verb} {name}"))?;
    let too_many =
        |reads: u8, flag| mask.contains(flag) && i32::from(reads) > device.spec.max_reads;
    if too_many(attr.max_rd_atomic, Mask::IBV_QP_MAX_QP_RD_ATOMIC)
        || too_many(attr.max_dest_rd_atomic, Mask::IBV_QP_MAX_DEST_RD_ATOMIC)
        || mask.contains(Mask::IBV_QP_PORT) && device.port(attr.port_num).is_none()
    {
        return Err(libc::EINVAL);
    }
    let mut pair = library.pairs.remove(&address).ok_or(libc::EINVAL)?;
    let outcome = modify_pair(&library, (qp, object.context), &mut pair, to, attr, mask);
    library.pairs.insert(address, pair);
    outcome?;
    library.direct_traffic();
    Ok(())
}

/// Changes a NIC queue pair, with the NIC's path and peer in place of the program's.
fn modify_pair(
    library: &LibraryState,
    (qp, context): (*mut ibv_qp, usize),
    pair: &mut Pair,
    to: State,
    mut attr: ibv_qp_attr,
    mask: Mask,
) -> Outcome<()> {
    if to == State::IBV_QPS_RTR {
        library.check_path(pair, &attr)?;
    }
    let (mut port, mut route, mut traffic) = (pair.port, pair.route, pair.traffic);
    if mask.contains(Mask::IBV_QP_PORT) {
        port = std::mem::replace(&mut attr.port_num, 1);
    }
    if mask.contains(Mask::IBV_QP_AV) {
        route = attr.ah_attr;
        traffic.reaches = library.reaches(&Pair {
            port,
            route,
            ..*pair
        });
        attr.ah_attr = library.path(context, &route, traffic.reaches);
    }
    if mask.contains(Mask::IBV_QP_DEST_QPN) {
        let others = library.pairs.values().chain([&*pair]);
        let peer = { others }.find(|peer| peer.number == attr.dest_qp_num);
        attr.dest_qp_num = peer.map_or(attr.dest_qp_num, |peer| peer.nic_number);
    }
    // SAFETY: the queue pair is alive.
    unsafe { nic().ibv_modify_qp(qp, &mut attr, mask.0 as c_int) }.map_err(errno_of)?;
    (pair.port, pair.route, pair.traffic) = (port, route, traffic);
    pair.state = to;
    if to != State::IBV_QPS_RTS {
        pair.traffic.is_held = false;
    }
    Ok(())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    mask: c_int,
    init_attr: *mut ibv_qp_init_attr,
) -> c_int {
    status(|| {
        on((Kind::Pair, qp), "ibv_query_qp", "", |_, _| {
            // SAFETY: the contract of this function.
            let attr = unsafe {
                let answer = nic().ibv_query_qp(qp, attr, mask, init_attr);
                answer.map_err(errno_of)?;
                &mut *attr
            };
            // The state in which the NIC holds requests is not visible to the program.
            if attr.qp_state == State::IBV_QPS_SQD {
                attr.qp_state = State::IBV_QPS_RTS;
            }
            Ok(())
        })
    })
}

/// Records that requests are being posted.
fn note_posting(verb: &str, qp: *mut ibv_qp) -> Outcome<()> {
    let mut library = lock_state();
    let id = library.object(verb, Kind::Pair, qp.addr())?.device;
    library.note(verb, id, "")
}

pub(crate) unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    first: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    status(|| {
        // SAFETY: the contract of this function.
        unsafe { bad.write(first) };
        note_posting("ibv_post_send", qp)?;
        let post = operations().context.ops.post_send.ok_or(libc::EOPNOTSUPP)?;
        // SAFETY: the contract of this function.
        outcome_of(unsafe { post(qp, first, bad) })
    })
}

pub(crate) unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    first: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    let verb = "ibv_post_recv";
    status(|| {
        // SAFETY: the contract of this function.
        unsafe { bad.write(first) };
        note_posting(verb, qp)?;
        // SAFETY: as above.
        unsafe { check_scatter(verb, qp, first) };
        let post = operations().context.ops.post_recv.ok_or(libc::EOPNOTSUPP)?;
        // SAFETY: the contract of this function.
        outcome_of(unsafe { post(qp, first, bad) })
    })
}

/// Records a violation if libmlx5 would copy small messages to GPU memory.
///
/// # Safety
///
/// The list is readable.
unsafe fn check_scatter(verb: &str, qp: *mut ibv_qp, mut next: *mut ibv_recv_wr) {
    let mut library = lock_state();
    let scatters = library.pairs.get(&qp.addr()).is_some_and(|it| it.scatters);
    // SAFETY: the contract of this function.
    while let Some(wr) = unsafe { next.as_ref() }.filter(|_| scatters) {
        let count = usize::try_from(wr.num_sge).unwrap_or(0);
        // SAFETY: the contract of this function.
        let mut keys = (0..count).map(|n| unsafe { (*wr.sg_list.add(n)).lkey });
        if keys.any(|key| library.is_gpu_memory(key)) {
            let what = "libmlx5 copies small messages to GPU pointers by the CPU, and crashes";
            library.violation(verb, what);
        }
        next = wr.next;
    }
}

/// The NIC's function that ends a batch.
static WR_COMPLETE: OnceLock<unsafe extern "C" fn(*mut ibv_qp_ex) -> c_int> = OnceLock::new();

unsafe extern "C" fn wr_complete(qp: *mut ibv_qp_ex) -> c_int {
    status(|| {
        if let Err(errno) = note_posting("ibv_wr_complete", qp.cast()) {
            // SAFETY: the program has started a batch.
            if let Some(abort) = unsafe { (*qp).wr_abort } {
                // SAFETY: as above.
                unsafe { abort(qp) };
            }
            return Err(errno);
        }
        let complete = WR_COMPLETE.get().ok_or(libc::EOPNOTSUPP)?;
        // SAFETY: the program has started a batch.
        outcome_of(unsafe { complete(qp) })
    })
}
