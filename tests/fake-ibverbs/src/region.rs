//! Registered memory.

use std::ffi::{c_int, c_uint, c_void};
use std::ptr;

use gdr_verbs_sys::{
    ib_uverbs_advise_mr_advice, ibv_access_flags, ibv_mr, ibv_mr_init_attr, ibv_mr_init_attr_mask,
    ibv_pd, ibv_sge,
};

use crate::answer::{Outcome, pointer, status};
use crate::dma::{self, Mapping};
use crate::handle::Handle;
use crate::spec::GpuPath;
use crate::world::{DeviceId, World};

/// The access flags that a dma-buf may be registered with (`man ibv_reg_mr`).
const DMA_BUF_ACCESS: u32 = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0
    | ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0
    | ibv_access_flags::IBV_ACCESS_REMOTE_READ.0
    | ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC.0
    | ibv_access_flags::IBV_ACCESS_RELAXED_ORDERING.0;

/// GPU memory that a peer-memory module can claim.
pub(crate) struct GpuMemory {
    base: u64,
    size: u64,
    fd: c_int,
}

/// Where the bytes are.
enum Backing {
    /// Where the program's pointer says.
    Host,
    /// In memory of which the program has no address.
    Gpu { mapping: Mapping, path: GpuPath },
}

/// A file, however many descriptors it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct File {
    fd: c_int,
    device: u64,
    inode: u64,
}

impl File {
    fn of(fd: c_int) -> Option<Self> {
        // SAFETY: a place of the right type, which may be all zeros.
        let mut status: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: a writable place.
        let answer = unsafe { libc::fstat(fd, &mut status) };
        (answer == 0).then_some(Self {
            fd,
            device: status.st_dev,
            inode: status.st_ino,
        })
    }
}

pub(crate) struct Region {
    pub(crate) device: DeviceId,
    pub(crate) domain: usize,
    object: Handle<ibv_mr>,
    iova: u64,
    len: usize,
    /// Where the program's own bytes are; of no meaning for GPU memory.
    address: usize,
    access: u32,
    backing: Backing,
    /// What the dma-buf's descriptor was.
    file: Option<File>,
}

/// What a region lets a request have.
pub(crate) struct Place {
    pub(crate) address: usize,
    /// How GPU memory is reached, where this is some.
    pub(crate) gpu: Option<GpuPath>,
}

impl Region {
    /// Where `len` bytes at `addr` are, if they are in the region.
    pub(crate) fn place(&self, addr: u64, len: usize) -> Option<Place> {
        let offset = usize::try_from(addr.checked_sub(self.iova)?).ok()?;
        if offset.checked_add(len)? > self.len {
            return None;
        }
        let (start, gpu) = match &self.backing {
            Backing::Host => (self.address, None),
            Backing::Gpu { mapping, path } => (mapping.start(), Some(*path)),
        };
        Some(Place {
            address: start + offset,
            gpu,
        })
    }

    pub(crate) fn permits(&self, wanted: ibv_access_flags) -> bool {
        self.access & wanted.0 == wanted.0
    }
}

/// What is to be registered.
struct Wanted {
    verb: &'static str,
    pd: *mut ibv_pd,
    address: usize,
    len: usize,
    iova: u64,
    access: u32,
}

impl World {
    /// Makes device addresses known as GPU memory.
    pub(crate) fn add_gpu_memory(&mut self, base: u64, size: u64, fd: c_int) -> Result<(), String> {
        // SAFETY: the kernel checks the descriptor.
        let fd = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0) };
        if fd < 0 {
            return Err("the descriptor of GPU memory is none".to_owned());
        }
        self.gpu_memory.push(GpuMemory { base, size, fd });
        Ok(())
    }

    fn insert_region(
        &mut self,
        id: DeviceId,
        wanted: &Wanted,
        backing: Backing,
        file: Option<File>,
    ) -> *mut ibv_mr {
        // SAFETY: pointers and numbers.
        let object: Handle<ibv_mr> = unsafe { Handle::zeroed() };
        let (handle, key) = (self.number(), self.number());
        // SAFETY: the object is new: nobody else has its address. The domain's is there for ever.
        unsafe {
            *object.as_ptr() = ibv_mr {
                context: (*wanted.pd).context,
                pd: wanted.pd,
                addr: ptr::with_exposed_provenance_mut(wanted.address),
                length: wanted.len,
                handle,
                lkey: key,
                rkey: key,
            };
        }
        self.regions.insert(
            key,
            Region {
                device: id,
                domain: wanted.pd.addr(),
                object,
                iova: wanted.iova,
                len: wanted.len,
                address: wanted.address,
                access: wanted.access,
                backing,
                file,
            },
        );
        object.as_ptr()
    }

    fn register(&mut self, wanted: &Wanted) -> Outcome<*mut ibv_mr> {
        let (id, _) = self.domain(wanted.verb, wanted.pd)?;
        let access = wanted.access;
        let (address, len) = (wanted.address, wanted.len);
        let detail = format!("{address:#x} {len} bytes, access {access:#x}");
        self.begin(wanted.verb, id, detail)?;
        check_access(access)?;
        if len == 0 {
            return Err(libc::EINVAL);
        }
        if access & ibv_access_flags::IBV_ACCESS_ON_DEMAND.0 != 0
            && !self.devices[id].spec.on_demand
        {
            return Err(libc::EOPNOTSUPP);
        }
        let inside = |memory: &&GpuMemory| {
            let offset = (address as u64).checked_sub(memory.base);
            offset.is_some_and(|it| it + len as u64 <= memory.size)
        };
        if let Some(memory) = self.gpu_memory.iter().rev().find(inside) {
            let path = self.devices[id].spec.peer_memory;
            if let GpuPath::Refuses(errno) = path {
                return Err(errno);
            }
            let mapping = Mapping::new(memory.fd, address as u64 - memory.base, len)?;
            return Ok(self.insert_region(id, wanted, Backing::Gpu { mapping, path }, None));
        }
        if !dma::is_mapped(address, len) {
            return Err(libc::EFAULT);
        }
        let limit = self.devices[id].spec.locked_memory;
        let pinned = |region: &&Region| matches!(region.backing, Backing::Host);
        let locked: u64 = self
            .regions
            .values()
            .filter(pinned)
            .map(|it| it.len as u64)
            .sum();
        if limit.is_some_and(|limit| locked + len as u64 > limit) {
            return Err(libc::ENOMEM);
        }
        Ok(self.insert_region(id, wanted, Backing::Host, None))
    }

    fn register_dma_buf(
        &mut self,
        wanted: &Wanted,
        fd: c_int,
        offset: u64,
    ) -> Outcome<*mut ibv_mr> {
        let (id, _) = self.domain(wanted.verb, wanted.pd)?;
        let (len, iova, access) = (wanted.len, wanted.iova, wanted.access);
        let detail =
            format!("fd {fd}, offset {offset:#x}, {len} bytes, iova {iova:#x}, access {access:#x}");
        self.begin(wanted.verb, id, detail)?;
        let path = self.devices[id].spec.dma_buf;
        if let GpuPath::Refuses(errno) = path {
            // What cannot be done at all is refused before anything is looked at; the rest is
            // about memory, which a probe without a descriptor has none of.
            let unsupported = matches!(errno, libc::EOPNOTSUPP | libc::EPROTONOSUPPORT);
            if unsupported || fd >= 0 {
                return Err(errno);
            }
        }
        if access & !DMA_BUF_ACCESS != 0 {
            return Err(libc::EINVAL);
        }
        check_access(access)?;
        let page = dma::page_size() as u64;
        if iova % page != offset % page {
            return Err(libc::EINVAL);
        }
        let file = File::of(fd).ok_or(libc::EBADF)?;
        let mapping = Mapping::new(fd, offset, len)?;
        Ok(self.insert_region(id, wanted, Backing::Gpu { mapping, path }, Some(file)))
    }
}

/// The kernel's rules for access flags (`ib_check_mr_access`).
fn check_access(access: u32) -> Outcome<()> {
    let changed =
        ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0 | ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC.0;
    let local = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0;
    if access & changed != 0 && access & local == 0 {
        return Err(libc::EINVAL);
    }
    Ok(())
}

#[unsafe(no_mangle)]
extern "C" fn ibv_reg_mr(
    pd: *mut ibv_pd,
    address: *mut c_void,
    len: usize,
    access: c_int,
) -> *mut ibv_mr {
    pointer(|world| {
        world.register(&Wanted {
            verb: "ibv_reg_mr",
            pd,
            address: address.expose_provenance(),
            len,
            iova: address.addr() as u64,
            access: access as u32,
        })
    })
}

#[unsafe(no_mangle)]
extern "C" fn ibv_reg_mr_iova2(
    pd: *mut ibv_pd,
    address: *mut c_void,
    len: usize,
    iova: u64,
    access: c_uint,
) -> *mut ibv_mr {
    pointer(|world| {
        world.register(&Wanted {
            verb: "ibv_reg_mr_iova2",
            pd,
            address: address.expose_provenance(),
            len,
            iova,
            access,
        })
    })
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
    pointer(|world| {
        let wanted = Wanted {
            verb: "ibv_reg_dmabuf_mr",
            pd,
            address: iova as usize,
            len,
            iova,
            access: access as u32,
        };
        world.register_dma_buf(&wanted, fd, offset)
    })
}

/// # Safety
///
/// `attr` is readable.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_mr_ex(pd: *mut ibv_pd, attr: *mut ibv_mr_init_attr) -> *mut ibv_mr {
    // SAFETY: this function's contract.
    let attr = unsafe { attr.read() };
    let has = |mask: ibv_mr_init_attr_mask| attr.comp_mask & u64::from(mask.0) != 0;
    let address = match has(ibv_mr_init_attr_mask::IBV_REG_MR_MASK_ADDR) {
        true => attr.addr.expose_provenance(),
        false => attr.iova as usize,
    };
    let iova = match has(ibv_mr_init_attr_mask::IBV_REG_MR_MASK_IOVA) {
        true => attr.iova,
        false => address as u64,
    };
    let wanted = Wanted {
        verb: "ibv_reg_mr_ex",
        pd,
        address,
        len: attr.length,
        iova,
        access: attr.access as u32,
    };
    pointer(
        |world| match has(ibv_mr_init_attr_mask::IBV_REG_MR_MASK_FD) {
            true => world.register_dma_buf(&wanted, attr.fd, attr.fd_offset),
            false => world.register(&wanted),
        },
    )
}

#[unsafe(no_mangle)]
extern "C" fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int {
    let verb = "ibv_dereg_mr";
    status(|world| {
        let found = world
            .regions
            .iter()
            .find(|(_, region)| region.object.as_ptr() == mr);
        let Some((key, region)) = found else {
            world.violation(verb, "the region is none, or was ended before");
            return Err(libc::EINVAL);
        };
        let (key, id) = (*key, region.device);
        let kept = match &region.backing {
            Backing::Host => dma::is_mapped(region.address, region.len),
            Backing::Gpu { .. } => true,
        };
        let open = region.file.map(|file| File::of(file.fd) == Some(file));
        let (what, len) = (region.iova, region.len);
        world.note(
            verb,
            id,
            format!("{what:#x} {len} bytes, descriptor open: {open:?}"),
        )?;
        if !kept {
            world.violation(
                verb,
                format_args!("the memory at {what:#x} was unmapped before"),
            );
        }
        if world.pairs.values().any(|pair| pair.uses(key)) {
            world.violation(verb, "requests that are posted name the region");
        }
        world.regions.remove(&key);
        Ok(())
    })
}

/// # Safety
///
/// `count` ranges are readable at `ranges`.
pub(crate) unsafe extern "C" fn advise_mr(
    pd: *mut ibv_pd,
    advice: ib_uverbs_advise_mr_advice,
    _: u32,
    ranges: *mut ibv_sge,
    count: u32,
) -> c_int {
    let verb = "ibv_advise_mr";
    status(|world| {
        let (id, _) = world.domain(verb, pd)?;
        world.begin(verb, id, format!("{advice}, {count} ranges"))?;
        for i in 0..count as usize {
            // SAFETY: this function's contract.
            let range = unsafe { ranges.add(i).read() };
            let region = world.regions.get(&range.lkey).ok_or(libc::EINVAL)?;
            region
                .place(range.addr, range.length as usize)
                .ok_or(libc::EINVAL)?;
        }
        Ok(())
    })
}
