//! Registration of memory.

use std::ffi::{c_int, c_uint, c_void};
use std::ptr;

use gdr_verbs_sys::{
    ib_uverbs_advise_mr_advice, ibv_access_flags, ibv_mr, ibv_mr_init_attr, ibv_mr_init_attr_mask,
    ibv_pd, ibv_sge,
};

use crate::c_abi::{Handle, Outcome};
use crate::dma::{self, Mapping};
use crate::ret::{pointer, status};
use crate::spec::GpuPath;
use crate::state::{Backing, DeviceId, File, GpuMemory, LibraryState, Region};

/// The access flags that are allowed for a dma-buf (`man ibv_reg_mr`).
const DMA_BUF_ACCESS: u32 = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0
    | ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0
    | ibv_access_flags::IBV_ACCESS_REMOTE_READ.0
    | ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC.0
    | ibv_access_flags::IBV_ACCESS_RELAXED_ORDERING.0;

/// The parameters of a registration.
struct Wanted {
    verb: &'static str,
    pd: *mut ibv_pd,
    address: usize,
    len: usize,
    iova: u64,
    access: u32,
}

impl LibraryState {
    /// Declares device addresses as GPU memory.
    pub(crate) fn add_gpu_memory(&mut self, base: u64, size: u64, fd: c_int) -> Result<(), String> {
        // SAFETY: the kernel checks the descriptor.
        let fd = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0) };
        if fd < 0 {
            return Err("the descriptor of GPU memory is invalid".to_owned());
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
        // SAFETY: the object is new, and its address is not known elsewhere. Domains are never freed.
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
            // A missing feature is refused before the descriptor is checked, so that a probe with an
            // invalid descriptor detects it.
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
    pointer(|library| {
        library.register(&Wanted {
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
    pointer(|library| {
        library.register(&Wanted {
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
    pointer(|library| {
        let wanted = Wanted {
            verb: "ibv_reg_dmabuf_mr",
            pd,
            address: iova as usize,
            len,
            iova,
            access: access as u32,
        };
        library.register_dma_buf(&wanted, fd, offset)
    })
}

/// # Safety
///
/// `attr` is readable.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_mr_ex(pd: *mut ibv_pd, attr: *mut ibv_mr_init_attr) -> *mut ibv_mr {
    // SAFETY: the contract of this function.
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
        |library| match has(ibv_mr_init_attr_mask::IBV_REG_MR_MASK_FD) {
            true => library.register_dma_buf(&wanted, attr.fd, attr.fd_offset),
            false => library.register(&wanted),
        },
    )
}

#[unsafe(no_mangle)]
extern "C" fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int {
    let verb = "ibv_dereg_mr";
    status(|library| {
        let found = library
            .regions
            .iter()
            .find(|(_, region)| region.object.as_ptr() == mr);
        let Some((key, region)) = found else {
            library.violation(verb, "the region does not exist or was deregistered before");
            return Err(libc::EINVAL);
        };
        let (key, id) = (*key, region.device);
        let kept = match &region.backing {
            Backing::Host => dma::is_mapped(region.address, region.len),
            Backing::Gpu { .. } => true,
        };
        let open = region.file.map(|file| File::of(file.fd) == Some(file));
        let (what, len) = (region.iova, region.len);
        library.note(
            verb,
            id,
            format!("{what:#x} {len} bytes, descriptor open: {open:?}"),
        )?;
        if !kept {
            library.violation(
                verb,
                format_args!("the memory at {what:#x} was unmapped before"),
            );
        }
        if library.pairs.values().any(|pair| pair.uses(key)) {
            library.violation(verb, "posted requests use the region");
        }
        library.regions.remove(&key);
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
    status(|library| {
        let (id, _) = library.domain(verb, pd)?;
        library.begin(verb, id, format!("{advice}, {count} ranges"))?;
        for i in 0..count as usize {
            // SAFETY: the contract of this function.
            let range = unsafe { ranges.add(i).read() };
            let region = library.regions.get(&range.lkey).ok_or(libc::EINVAL)?;
            region
                .place(range.addr, range.length as usize)
                .ok_or(libc::EINVAL)?;
        }
        Ok(())
    })
}
