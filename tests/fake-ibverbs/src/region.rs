//! Registration of memory.

use std::ffi::{c_int, c_uint, c_void};
use std::ptr;

use gdr_verbs_sys::{ib_uverbs_advise_mr_advice, ibv_access_flags, ibv_mr, ibv_pd, ibv_sge};
use rustix::param::page_size;

use crate::mapping::{File, Mapping, is_mapped};
use crate::nic::nic;
use crate::spec::GpuPath;
use crate::state::{Kind, LibraryState, lock_state};
use crate::verb::{Outcome, end, errno_of, on, pointer, status};

/// Access flags allowed for a dma-buf (`man ibv_reg_mr`).
const DMA_BUF_ACCESS: u32 = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0
    | ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0
    | ibv_access_flags::IBV_ACCESS_REMOTE_READ.0
    | ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC.0
    | ibv_access_flags::IBV_ACCESS_RELAXED_ORDERING.0;

/// GPU memory that a peer-memory module supports.
pub(crate) struct GpuMemory {
    base: u64,
    size: u64,
    fd: c_int,
}

pub(crate) struct Region {
    key: u32,
    address: usize,
    len: usize,
    iova: u64,
    /// The memory of a GPU; `None` for host memory.
    mapping: Option<Mapping>,
    /// The file of the dma-buf.
    file: Option<File>,
}

/// The parameters of a registration.
#[derive(Clone, Copy)]
struct Wanted {
    pd: *mut ibv_pd,
    address: usize,
    len: usize,
    iova: u64,
    access: u32,
}

impl LibraryState {
    /// Declares device addresses to be GPU memory.
    pub(crate) fn add_gpu_memory(&mut self, base: u64, size: u64, fd: c_int) {
        // SAFETY: the kernel checks the descriptor.
        let fd = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0) };
        assert!(fd >= 0, "the descriptor of GPU memory is invalid");
        self.gpu_memory.push(GpuMemory { base, size, fd });
    }

    /// Returns whether a region with this key is memory of a GPU.
    pub(crate) fn is_gpu_memory(&self, key: u32) -> bool {
        let mut regions = self.regions.values();
        regions.any(|region| region.key == key && region.mapping.is_some())
    }

    /// Registers a mapping of GPU memory with the NIC.
    fn register_gpu(
        &mut self,
        wanted: &Wanted,
        path: GpuPath,
        mapping: Mapping,
        file: Option<File>,
    ) -> Outcome<*mut ibv_mr> {
        let mapping = match path {
            GpuPath::LosesBytes => Mapping::anonymous(wanted.len)?,
            _ => mapping,
        };
        let mr = self.add_region(wanted, Some(mapping), file)?;
        // SAFETY: the region was just created, and the program does not have it yet.
        let mr = unsafe { &mut *mr };
        mr.addr = ptr::without_provenance_mut(wanted.address);
        if path == GpuPath::Fails {
            // A key that the NIC never returned.
            (mr.lkey, mr.rkey) = (!mr.lkey, !mr.rkey);
        }
        Ok(mr)
    }

    fn add_region(
        &mut self,
        wanted: &Wanted,
        mapping: Option<Mapping>,
        file: Option<File>,
    ) -> Outcome<*mut ibv_mr> {
        let Wanted { len, iova, .. } = *wanted;
        let start = mapping.as_ref().map_or(wanted.address, Mapping::start);
        let start = ptr::with_exposed_provenance_mut(start);
        // The NIC can only register memory that is mapped.
        let access = wanted.access & !ibv_access_flags::IBV_ACCESS_ON_DEMAND.0;
        // SAFETY: the memory is mapped, and stays so as long as the program's rules, or the region, require.
        let made = unsafe { nic().ibv_reg_mr_iova2(wanted.pd, start, len, iova, access) };
        let mr = made.map_err(errno_of)?.as_ptr();
        let region = Region {
            // SAFETY: the region was just made.
            key: unsafe { (*mr).lkey },
            address: wanted.address,
            len,
            iova,
            mapping,
            file,
        };
        self.add_object(Kind::Region, mr, wanted.pd.addr());
        self.regions.insert(mr.addr(), region);
        Ok(mr)
    }
}

impl Wanted {
    fn new(pd: *mut ibv_pd, address: usize, len: usize, iova: u64, access: u32) -> Self {
        Self {
            pd,
            address,
            len,
            iova,
            access,
        }
    }
}

fn register(verb: &str, wanted: Wanted) -> Outcome<*mut ibv_mr> {
    let (address, len, access) = (wanted.address, wanted.len, wanted.access);
    let detail = format_args!("{address:#x} {len} bytes, access {access:#x}");
    on((Kind::Domain, wanted.pd), verb, detail, |library, id| {
        let spec = &library.devices[id].spec;
        if access & ibv_access_flags::IBV_ACCESS_ON_DEMAND.0 != 0 && !spec.on_demand {
            return Err(libc::EOPNOTSUPP);
        }
        let inside = |memory: &&GpuMemory| {
            let offset = (address as u64).checked_sub(memory.base);
            offset.is_some_and(|it| it + len as u64 <= memory.size)
        };
        let Some(memory) = library.gpu_memory.iter().rev().find(inside) else {
            return library.add_region(&wanted, None, None);
        };
        let path = spec.peer_memory;
        if let GpuPath::Refuses(errno) = path {
            return Err(errno);
        }
        let mapping = Mapping::new(memory.fd, address as u64 - memory.base, len)?;
        library.register_gpu(&wanted, path, mapping, None)
    })
}

fn register_dma_buf(verb: &str, wanted: Wanted, fd: c_int, offset: u64) -> Outcome<*mut ibv_mr> {
    let (len, iova, access) = (wanted.len, wanted.iova, wanted.access);
    let detail = format_args!(
        "fd {fd}, offset {offset:#x}, {len} bytes, iova {iova:#x}, access {access:#x}"
    );
    on((Kind::Domain, wanted.pd), verb, detail, |library, id| {
        let path = library.devices[id].spec.dma_buf;
        if let GpuPath::Refuses(errno) = path {
            // A missing feature is refused before the descriptor is checked, so that a probe with an
            // invalid descriptor detects it.
            let unsupported = matches!(errno, libc::EOPNOTSUPP | libc::EPROTONOSUPPORT);
            if unsupported || fd >= 0 {
                return Err(errno);
            }
        }
        let page = page_size() as u64;
        if access & !DMA_BUF_ACCESS != 0 || iova % page != offset % page {
            return Err(libc::EINVAL);
        }
        let file = File::of(fd).ok_or(libc::EBADF)?;
        let mapping = Mapping::new(fd, offset, len)?;
        library.register_gpu(&wanted, path, mapping, Some(file))
    })
}

#[unsafe(no_mangle)]
extern "C" fn ibv_reg_mr(
    pd: *mut ibv_pd,
    address: *mut c_void,
    len: usize,
    access: c_int,
) -> *mut ibv_mr {
    let (start, iova) = (address.expose_provenance(), address.addr() as u64);
    let wanted = Wanted::new(pd, start, len, iova, access as u32);
    pointer(|| register("ibv_reg_mr", wanted))
}

#[unsafe(no_mangle)]
extern "C" fn ibv_reg_mr_iova2(
    pd: *mut ibv_pd,
    address: *mut c_void,
    len: usize,
    iova: u64,
    access: c_uint,
) -> *mut ibv_mr {
    let wanted = Wanted::new(pd, address.expose_provenance(), len, iova, access);
    pointer(|| register("ibv_reg_mr_iova2", wanted))
}

#[unsafe(no_mangle)]
extern "C" fn ibv_reg_dmabuf_mr(
    pd: *mut ibv_pd,
    offset: u64,
    len: usize,
    iova: u64,
    fd: c_int,
    access: c_int,
) -> *mut ibv_mr {
    let wanted = Wanted::new(pd, iova as usize, len, iova, access as u32);
    pointer(|| register_dma_buf("ibv_reg_dmabuf_mr", wanted, fd, offset))
}

#[unsafe(no_mangle)]
extern "C" fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int {
    let verb = "ibv_dereg_mr";
    status(|| {
        let mut library = lock_state();
        let region = library.regions.remove(&mr.addr());
        let open = region.as_ref().and_then(|it| it.file);
        let open = open.map(|file| File::of(file.fd) == Some(file));
        if let Some(Region {
            mapping: None,
            address,
            len,
            ..
        }) = &region
            && !is_mapped(*address, *len)
        {
            let what = format_args!("the memory at {address:#x} was unmapped before");
            library.violation(verb, what);
        }
        drop(library);
        let (iova, len) = region.as_ref().map_or((0, 0), |it| (it.iova, it.len));
        let detail = format_args!("{iova:#x} {len} bytes, descriptor open: {open:?}");
        // SAFETY: the program deregisters it once, and its memory is unmapped later.
        end(Kind::Region, verb, mr, detail, |nic| unsafe {
            nic.ibv_dereg_mr(mr)
        })
    })
}

pub(crate) extern "C" fn advise_mr(
    pd: *mut ibv_pd,
    advice: ib_uverbs_advise_mr_advice,
    _: u32,
    _: *mut ibv_sge,
    count: u32,
) -> c_int {
    let detail = format_args!("{advice}, {count} ranges");
    status(|| on((Kind::Domain, pd), "ibv_advise_mr", detail, |_, _| Ok(())))
}
