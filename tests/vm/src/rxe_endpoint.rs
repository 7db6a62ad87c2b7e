//! rxe: its device for gdr-rdma, and its queue pairs for datagrams, which gdr-rdma's verbs provider lacks, through
//! libibverbs with the declarations of gdr-verbs-sys.

use std::ffi::{CStr, c_int, c_void};
use std::marker::PhantomData;
use std::mem::{self, MaybeUninit};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::thread;

use anyhow::Context;
use gdr_rdma::{Deadline, VerbsOptions};
use gdr_verbs_sys::{
    Errno, VerbError, Verbs, ibv_access_flags, ibv_ah, ibv_ah_attr, ibv_context, ibv_cq, ibv_gid,
    ibv_gid_entry, ibv_gid_type, ibv_global_route, ibv_mr, ibv_pd, ibv_poll_cq, ibv_post_recv,
    ibv_post_send, ibv_qp, ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_cap, ibv_qp_init_attr,
    ibv_qp_state, ibv_qp_type, ibv_recv_wr, ibv_send_flags, ibv_send_wr, ibv_sge, ibv_wc_flags,
    ibv_wc_status, ibv_wr_opcode,
};

use crate::memory::Memory;

/// The IPv4 address of the host with rxe.
pub const V4: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 78, 0, 2));
/// The IPv6 address of the host with rxe.
pub const V6: IpAddr = IpAddr::V6(Ipv6Addr::new(0xfd78, 0, 0, 0, 0, 0, 0, 2));

const PORT: u8 = 1;

/// An open device. It is closed after the last of its objects is dropped.
#[derive(Debug)]
pub struct Device {
    verbs: &'static Verbs,
    context: NonNull<ibv_context>,
}

// SAFETY: the objects of libibverbs may be used from several threads at the same time, except for
// their destruction, which only `drop` does.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

impl Device {
    /// Opens the device with this name.
    ///
    /// # Errors
    /// If it is not found.
    pub fn open(name: &str) -> anyhow::Result<Arc<Self>> {
        let verbs = Verbs::load()?;
        let devices = verbs.devices()?;
        for &device in devices.as_slice() {
            // SAFETY: the list is not freed, and names are C strings.
            let found = unsafe { CStr::from_ptr(verbs.ibv_get_device_name(device)) };
            if found.to_bytes() == name.as_bytes() {
                // SAFETY: the list is not freed.
                let context = unsafe { verbs.ibv_open_device(device) }?;
                return Ok(Arc::new(Self { verbs, context }));
            }
        }
        anyhow::bail!("no device {name}")
    }

    /// Tries to register a DMA buffer (`ibv_reg_dmabuf_mr`).
    ///
    /// # Errors
    /// The error of the call.
    pub fn register_dmabuf(&self, buffer: &OwnedFd, len: u64) -> Result<(), Errno> {
        self.try_registration(|pd| {
            let access = every_access().0 as c_int;
            let (verbs, fd) = (self.verbs, buffer.as_raw_fd());
            // SAFETY: the domain is alive; the buffer outlives the registration.
            unsafe { verbs.ibv_reg_dmabuf_mr(pd, 0, len as usize, 0, fd, access) }
        })
    }

    /// Tries to register a mapping of a DMA buffer (`ibv_reg_mr`).
    ///
    /// # Errors
    /// The error of the call.
    pub fn register_mapping_of(&self, buffer: &OwnedFd, len: u64) -> Result<(), Errno> {
        let memory = Memory::map(buffer, len as usize).expect("a mapping");
        self.try_registration(|pd| {
            let start = memory.start().cast();
            // SAFETY: the domain is alive; the mapping outlives the registration.
            unsafe { self.verbs.reg_mr(pd, start, memory.len(), every_access()) }
        })
    }

    /// Registers and immediately deregisters.
    fn try_registration(
        &self,
        register: impl FnOnce(*mut ibv_pd) -> Result<NonNull<ibv_mr>, VerbError>,
    ) -> Result<(), Errno> {
        let verbs = self.verbs;
        // SAFETY: the context is open; the objects are destroyed here, in reverse order.
        unsafe {
            let pd = verbs.ibv_alloc_pd(self.context.as_ptr()).expect("a domain");
            let made = register(pd.as_ptr());
            if let Ok(region) = made {
                verbs.ibv_dereg_mr(region.as_ptr()).expect("dereg_mr");
            }
            verbs.ibv_dealloc_pd(pd.as_ptr()).expect("dealloc_pd");
            made.map(drop).map_err(|error| error.errno())
        }
    }

    /// Returns the index of the RoCEv2 GID of this address in the GID table.
    ///
    /// # Errors
    /// If there is no such GID.
    pub fn gid_index(&self, ip: IpAddr) -> anyhow::Result<u8> {
        let mut entries = [MaybeUninit::<ibv_gid_entry>::uninit(); 64];
        // SAFETY: the context is open.
        let table = unsafe {
            self.verbs
                .query_gid_table(self.context.as_ptr(), &mut entries)
        }?;
        let wanted = gid(ip);
        table
            .iter()
            .find(|entry| {
                // SAFETY: every variant of the union has sixteen bytes.
                let raw = unsafe { entry.gid.raw };
                raw == wanted && entry.gid_type == ibv_gid_type::IBV_GID_TYPE_ROCE_V2.0
            })
            .and_then(|entry| u8::try_from(entry.gid_index).ok())
            .with_context(|| format!("no GID of {ip}"))
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: objects of the context have a reference to `self`, so all are dropped.
        if let Err(error) = unsafe { self.verbs.ibv_close_device(self.context.as_ptr()) } {
            eprintln!("{error}");
        }
    }
}

/// Returns the GID of an address; IPv4 addresses are mapped to IPv6.
fn gid(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    }
}

/// Opens the rxe device with this name by the verbs provider, at the GID of this address.
///
/// # Errors
/// The errors of [`gdr_rdma::Device::verbs`].
pub fn verbs_device(name: &str, ip: IpAddr) -> anyhow::Result<gdr_rdma::Device> {
    let index = Device::open(name)?.gid_index(ip)?;
    let options = VerbsOptions::new().device(name).gid_index(index.into());
    Ok(gdr_rdma::Device::verbs(&options)?)
}

/// A completion of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The identifier of the request.
    pub id: u64,
    /// The length in bytes, for receives.
    pub bytes: u32,
    /// The immediate data of the message.
    pub immediate: Option<u32>,
    /// The queue pair that sent it.
    pub source_qpn: Option<u32>,
}

/// A queue pair of rxe for datagrams, with its completion queue and memory.
#[derive(Debug)]
pub struct RxeDatagrams {
    device: Arc<Device>,
    pd: NonNull<ibv_pd>,
    cq: NonNull<ibv_cq>,
    qp: NonNull<ibv_qp>,
    mr: NonNull<ibv_mr>,
    memory: Memory,
    ip: IpAddr,
}

// SAFETY: as for `Device`.
unsafe impl Send for RxeDatagrams {}

impl RxeDatagrams {
    /// Creates a queue pair with this queue key at this address of the device, in RTS, and `len` bytes of
    /// memory.
    ///
    /// # Errors
    /// The errors of libibverbs.
    pub fn new(device: &Arc<Device>, ip: IpAddr, qkey: u32, len: usize) -> anyhow::Result<Self> {
        let verbs = device.verbs;
        let context = device.context.as_ptr();
        let memory = Memory::new(len)?;
        // SAFETY: the context is open; its objects are stored with it, and destroyed in reverse
        // order.
        let pair = unsafe {
            let pd = verbs.ibv_alloc_pd(context)?;
            let (no_context, no_channel) = (ptr::null_mut(), ptr::null_mut());
            let cq = verbs.ibv_create_cq(context, 1024, no_context, no_channel, 0)?;
            let mr = verbs.reg_mr(pd.as_ptr(), memory.start().cast(), len, every_access())?;
            let mut attr = ibv_qp_init_attr {
                send_cq: cq.as_ptr(),
                recv_cq: cq.as_ptr(),
                cap: ibv_qp_cap {
                    max_send_wr: 128,
                    max_recv_wr: 128,
                    max_send_sge: 1,
                    max_recv_sge: 1,
                    max_inline_data: 0,
                },
                qp_type: ibv_qp_type::IBV_QPT_UD,
                ..MaybeUninit::zeroed().assume_init()
            };
            let qp = verbs.ibv_create_qp(pd.as_ptr(), &mut attr)?;
            Self {
                device: Arc::clone(device),
                pd,
                cq,
                qp,
                mr,
                memory,
                ip,
            }
        };
        let mut init = attributes(ibv_qp_state::IBV_QPS_INIT);
        init.port_num = PORT;
        init.qkey = qkey;
        pair.modify(
            &mut init,
            &[
                ibv_qp_attr_mask::IBV_QP_PKEY_INDEX,
                ibv_qp_attr_mask::IBV_QP_PORT,
                ibv_qp_attr_mask::IBV_QP_QKEY,
            ],
        )?;
        pair.modify(&mut attributes(ibv_qp_state::IBV_QPS_RTR), &[])?;
        let mut rts = attributes(ibv_qp_state::IBV_QPS_RTS);
        pair.modify(&mut rts, &[ibv_qp_attr_mask::IBV_QP_SQ_PSN])?;
        Ok(pair)
    }

    /// Returns the number of the queue pair.
    pub fn qpn(&self) -> u32 {
        // SAFETY: the queue pair is alive.
        unsafe { self.qp.as_ref() }.qp_num
    }

    fn modify(&self, attr: &mut ibv_qp_attr, mask: &[ibv_qp_attr_mask]) -> anyhow::Result<()> {
        let state = ibv_qp_attr_mask::IBV_QP_STATE.0;
        let mask = mask.iter().fold(state, |all, bit| all | bit.0);
        let verbs = self.device.verbs;
        // SAFETY: the queue pair is alive and the attributes are readable.
        unsafe { verbs.ibv_modify_qp(self.qp.as_ptr(), attr, mask as c_int) }?;
        Ok(())
    }

    /// Returns the address of a peer.
    fn address(&self, peer: IpAddr) -> anyhow::Result<ibv_ah_attr> {
        Ok(ibv_ah_attr {
            grh: ibv_global_route {
                dgid: ibv_gid { raw: gid(peer) },
                flow_label: 0,
                sgid_index: self.device.gid_index(self.ip)?,
                hop_limit: 64,
                traffic_class: 0,
            },
            is_global: 1,
            port_num: PORT,
            dlid: 0,
            sl: 0,
            src_path_bits: 0,
            static_rate: 0,
        })
    }

    /// Creates an address handle of a peer.
    ///
    /// # Errors
    /// The errors of libibverbs.
    pub fn address_handle(&self, peer: IpAddr) -> anyhow::Result<AddressHandle<'_>> {
        let functions = AhFunctions::load()?;
        let mut address = self.address(peer)?;
        // SAFETY: the protection domain is alive, and the attributes are readable.
        let handle = unsafe { (functions.create)(self.pd.as_ptr(), &mut address) };
        Ok(AddressHandle {
            handle: NonNull::new(handle).context("ibv_create_ah failed")?,
            destroy: functions.destroy,
            endpoint: PhantomData,
        })
    }

    /// Sends `len` bytes at `at` to the queue pair `qpn` for datagrams at an address, signalled. The
    /// address handle must live until the completion: rxe looks it up when it sends.
    ///
    /// # Errors
    /// The errors of libibverbs.
    pub fn send_datagram(
        &self,
        id: u64,
        (at, len): (u64, u32),
        (to, qpn, qkey): (&AddressHandle<'_>, u32, u32),
        immediate: Option<u32>,
    ) -> anyhow::Result<()> {
        // SAFETY: the fields are numbers, nullable pointers, and unions of them.
        let mut request: ibv_send_wr = unsafe { MaybeUninit::zeroed().assume_init() };
        let mut segment = self.segment(at, len);
        request.wr_id = id;
        request.sg_list = &mut segment;
        request.num_sge = 1;
        request.send_flags = ibv_send_flags::IBV_SEND_SIGNALED.0;
        request.opcode = match immediate {
            Some(_) => ibv_wr_opcode::IBV_WR_SEND_WITH_IMM,
            None => ibv_wr_opcode::IBV_WR_SEND,
        };
        request.__bindgen_anon_1.imm_data = immediate.unwrap_or(0).to_be();
        request.wr.ud.ah = to.handle.as_ptr();
        request.wr.ud.remote_qpn = qpn;
        request.wr.ud.remote_qkey = qkey;
        // SAFETY: the queue pair and the handle are valid; the memory outlives the queue pair.
        let posted = unsafe { ibv_post_send(self.qp.as_ptr(), &mut request) };
        Ok(posted.map_err(|error| error.error)?)
    }

    /// Writes to the memory.
    pub fn fill(&self, at: u64, bytes: &[u8]) {
        let start = self.memory.at(at, bytes.len());
        for (n, byte) in bytes.iter().enumerate() {
            // SAFETY: `at` has checked the range. The access is volatile because rxe shares the
            // memory.
            unsafe { start.add(n).write_volatile(*byte) };
        }
    }

    /// Reads from the memory.
    #[must_use]
    pub fn bytes(&self, at: u64, len: usize) -> Vec<u8> {
        let start = self.memory.at(at, len);
        // SAFETY: `at` has checked the range. The access is volatile because rxe shares the memory.
        (0..len)
            .map(|n| unsafe { start.add(n).read_volatile() })
            .collect()
    }

    /// Posts a receive of `len` bytes at `at`.
    pub fn receive(&self, id: u64, at: u64, len: u32) {
        let mut segment = self.segment(at, len);
        let mut request = ibv_recv_wr {
            wr_id: id,
            next: ptr::null_mut(),
            sg_list: &mut segment,
            num_sge: 1,
        };
        // SAFETY: the queue pair is valid; the memory outlives it.
        unsafe { ibv_post_recv(self.qp.as_ptr(), &mut request) }.expect("post_recv");
    }

    /// Waits for the next completion, which must be successful.
    pub fn done(&self, deadline: Deadline) -> Completion {
        let mut room = [MaybeUninit::uninit()];
        loop {
            // SAFETY: the queue is valid, and not an extended one.
            let found = unsafe { ibv_poll_cq(self.cq.as_ptr(), &mut room) }.expect("poll_cq");
            if let Some(wc) = found.first() {
                assert_eq!(wc.status, ibv_wc_status::IBV_WC_SUCCESS);
                let with_immediate = wc.wc_flags & ibv_wc_flags::IBV_WC_WITH_IMM.0 != 0;
                // SAFETY: by the flag the union has an immediate.
                let immediate =
                    with_immediate.then(|| u32::from_be(unsafe { wc.__bindgen_anon_1.imm_data }));
                return Completion {
                    id: wc.wr_id,
                    bytes: wc.byte_len,
                    immediate,
                    source_qpn: (wc.wc_flags & ibv_wc_flags::IBV_WC_GRH.0 != 0)
                        .then_some(wc.src_qp),
                };
            }
            assert!(!deadline.has_passed(), "no completion");
            thread::yield_now();
        }
    }

    fn segment(&self, at: u64, len: u32) -> ibv_sge {
        ibv_sge {
            addr: self.memory.at(at, len as usize).addr() as u64,
            length: len,
            // SAFETY: the region is alive.
            lkey: unsafe { self.mr.as_ref() }.lkey,
        }
    }
}

/// The address of a peer (`struct ibv_ah`).
#[derive(Debug)]
pub struct AddressHandle<'a> {
    handle: NonNull<ibv_ah>,
    destroy: DestroyAh,
    /// It belongs to the endpoint's protection domain.
    endpoint: PhantomData<&'a RxeDatagrams>,
}

impl Drop for AddressHandle<'_> {
    fn drop(&mut self) {
        // SAFETY: the handle is valid, and not used again.
        let status = unsafe { (self.destroy)(self.handle.as_ptr()) };
        if status != 0 {
            eprintln!("ibv_destroy_ah: {status}");
        }
    }
}

type CreateAh = unsafe extern "C" fn(*mut ibv_pd, *mut ibv_ah_attr) -> *mut ibv_ah;
type DestroyAh = unsafe extern "C" fn(*mut ibv_ah) -> c_int;

/// The functions of libibverbs for address handles, which gdr-verbs-sys does not declare.
struct AhFunctions {
    create: CreateAh,
    destroy: DestroyAh,
}

impl AhFunctions {
    fn load() -> anyhow::Result<Self> {
        // SAFETY: the name is a C string, and the library was loaded before.
        let library = unsafe { libc::dlopen(c"libibverbs.so.1".as_ptr(), libc::RTLD_NOW) };
        anyhow::ensure!(!library.is_null(), "no libibverbs.so.1");
        let symbol = |name: &CStr| {
            // SAFETY: the library is never closed.
            let symbol = unsafe { libc::dlsym(library, name.as_ptr()) };
            NonNull::new(symbol).with_context(|| format!("no {name:?} in libibverbs"))
        };
        let (create, destroy) = (symbol(c"ibv_create_ah")?, symbol(c"ibv_destroy_ah")?);
        // SAFETY: the functions have these types in infiniband/verbs.h.
        Ok(unsafe {
            Self {
                create: mem::transmute::<*mut c_void, CreateAh>(create.as_ptr()),
                destroy: mem::transmute::<*mut c_void, DestroyAh>(destroy.as_ptr()),
            }
        })
    }
}

fn every_access() -> ibv_access_flags {
    ibv_access_flags(
        ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0
            | ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0
            | ibv_access_flags::IBV_ACCESS_REMOTE_READ.0
            | ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC.0,
    )
}

fn attributes(state: ibv_qp_state) -> ibv_qp_attr {
    ibv_qp_attr {
        qp_state: state,
        // SAFETY: the fields are numbers, and a union of bytes.
        ..unsafe { MaybeUninit::zeroed().assume_init() }
    }
}

impl Drop for RxeDatagrams {
    fn drop(&mut self) {
        let verbs = self.device.verbs;
        // SAFETY: each object is valid and not used again, and none outlives an object that it depends on.
        let results = unsafe {
            [
                verbs.ibv_destroy_qp(self.qp.as_ptr()),
                verbs.ibv_destroy_cq(self.cq.as_ptr()),
                verbs.ibv_dereg_mr(self.mr.as_ptr()),
                verbs.ibv_dealloc_pd(self.pd.as_ptr()),
            ]
        };
        for error in results.into_iter().filter_map(Result::err) {
            eprintln!("{error}");
        }
    }
}
