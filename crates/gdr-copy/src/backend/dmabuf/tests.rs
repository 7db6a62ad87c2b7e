//! The backend with an exporter of memfds.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU8, Ordering};

use gdr_cuda::{BufferId, PointerInfo, PointerKind, SimDriver};
use snapshot::assert_contains;

use super::*;
use crate::options::{Bus, PinOptions};

const BASE: u64 = 0x7f00_0020_0000;
const SIZE: u64 = 2 << 20;

/// One export: address, length, flags, and its memory.
#[derive(Debug)]
struct Export {
    va: u64,
    len: u64,
    flags: u64,
    memory: OwnedFd,
}

/// A fake CUDA: one GPU with one allocation.
#[derive(Clone, Debug)]
struct FakeCuda(Arc<Answers>);

#[derive(Debug)]
struct Answers {
    version: CudaVersion,
    dma_buf: bool,
    maps: bool,
    coherent: bool,
    /// Whether the memory is freed, and its address allocated again, during an export.
    reused: bool,
    /// The description of the simulated GPU.
    gpu: DeviceInfo,
    exports: Mutex<Vec<Export>>,
    enumerations: Mutex<u32>,
}

impl FakeCuda {
    fn new(change: impl FnOnce(&mut Answers)) -> Self {
        use gdr_cuda::Driver;
        let mut answers = Answers {
            version: CudaVersion {
                major: 13,
                minor: 3,
            },
            dma_buf: true,
            maps: true,
            coherent: false,
            reused: false,
            gpu: SimDriver::new(1).devices().unwrap().remove(0),
            exports: Mutex::default(),
            enumerations: Mutex::default(),
        };
        change(&mut answers);
        Self(Arc::new(answers))
    }

    fn open(&self) -> Result<DmaBufBackend> {
        DmaBufBackend::over(Box::new(self.clone()))
    }

    /// Returns the only export so far: address, length, flags.
    fn exported(&self) -> (u64, u64, u64) {
        let exports = self.0.exports.lock().unwrap();
        assert_eq!(exports.len(), 1);
        (exports[0].va, exports[0].len, exports[0].flags)
    }

    fn gpu_reads(&self, offset: u64) -> u8 {
        let mut byte = [0];
        let exports = self.0.exports.lock().unwrap();
        assert_eq!(
            rustix::io::pread(&exports[0].memory, &mut byte, offset).unwrap(),
            1
        );
        byte[0]
    }
}

impl Exporter for FakeCuda {
    fn cuda_version(&self) -> CudaVersion {
        self.0.version
    }

    fn devices(&self) -> Result<Vec<DeviceInfo>> {
        *self.0.enumerations.lock().unwrap() += 1;
        Ok(vec![DeviceInfo {
            dma_buf: self.0.dma_buf,
            coherent: self.0.coherent,
            ..self.0.gpu.clone()
        }])
    }

    fn locate(&self, request: &PinRequest) -> Result<PointerInfo> {
        let (ptr, len) = (request.ptr, request.len);
        let info = PointerInfo {
            kind: PointerKind::Device,
            device: Ordinal(0),
            buffer: BufferId(match self.0.reused {
                true => 1 + self.0.exports.lock().unwrap().len() as u64,
                false => 1,
            }),
            base: DevicePtr::new(BASE),
            size: SIZE,
            family: gdr_cuda::Family::Plain,
            mapping: None,
        };
        match info.remaining(ptr) {
            0 => Err(gdr_cuda::Error::UnknownPointer { ptr }.into()),
            left if left < len => Err(Error::PastAllocation {
                ptr,
                len,
                base: info.base,
                size: info.size,
            }),
            _ => Ok(info),
        }
    }

    fn export(
        &self,
        _: Ordinal,
        va: DevicePtr,
        len: u64,
        mapping_type: MappingType,
    ) -> Result<OwnedFd> {
        let page = host_page();
        assert!(
            va.get().is_multiple_of(page) && len.is_multiple_of(page),
            "{va} {len}"
        );
        assert!(
            va.get() >= BASE && va.get() + len <= BASE + SIZE,
            "inside the allocation"
        );
        if !self.0.maps {
            // A socket is a descriptor whose mmap the kernel refuses.
            return Ok(std::os::unix::net::UnixStream::pair().unwrap().0.into());
        }
        let memory = rustix::fs::memfd_create("dma-buf", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&memory, len).unwrap();
        let fd = memory.try_clone().unwrap();
        self.0.exports.lock().unwrap().push(Export {
            va: va.get(),
            len,
            flags: mapping_type.flags(),
            memory,
        });
        Ok(fd)
    }
}

fn request(ptr: u64, len: u64) -> PinRequest {
    PinRequest {
        ptr: DevicePtr::new(ptr),
        len,
        options: PinOptions::new(),
    }
}

#[test]
fn cuda_before_13_3_is_refused_with_the_required_version() {
    let old = FakeCuda::new(|cuda| {
        cuda.version = CudaVersion {
            major: 13,
            minor: 2,
        }
    });
    let text = old.open().unwrap_err().to_string();
    for word in ["CUDA 13.2", "610.43.02", "CUDA 13.3", "GDR_BACKEND=rm"] {
        assert_contains!(text, word);
    }
    let new = FakeCuda::new(|cuda| {
        cuda.version = CudaVersion {
            major: 14,
            minor: 0,
        }
    });
    assert!(new.open().unwrap().reason().contains("14.0"));
}

#[test]
fn opening_leaves_cuda_uninitialized() {
    let cuda = FakeCuda::new(|_| {});
    let backend = cuda.open().unwrap();
    assert_eq!(*cuda.0.enumerations.lock().unwrap(), 0);
    for offset in [0, 4096] {
        backend.pin(&request(BASE + offset, 1)).unwrap();
    }
    assert_eq!(*cuda.0.enumerations.lock().unwrap(), 1, "queried once");
}

#[test]
fn a_gpu_without_dma_bufs_is_refused_by_name() {
    let cuda = FakeCuda::new(|cuda| cuda.dma_buf = false);
    let error = cuda.open().unwrap().pin(&request(BASE, 1)).unwrap_err();
    assert!(matches!(error, Error::DmaBufMmap { .. }));
    assert!(error.to_string().contains(&cuda.0.gpu.name), "{error}");
}

#[test]
fn a_range_is_widened_to_host_pages_and_its_bytes_are_at_their_offsets() {
    let cuda = FakeCuda::new(|_| {});
    let page = host_page();
    let pin = cuda
        .open()
        .unwrap()
        .pin(&request(BASE + page + 100, page))
        .unwrap();
    assert_eq!((pin.va().get(), pin.len()), (BASE + page, 2 * page));
    assert_eq!(
        (u64::from(pin.page_size()), pin.route()),
        (page, Route::DmaBufMmap)
    );
    assert_eq!(cuda.exported(), (BASE + page, 2 * page, 0));
    assert!(!pin.invalidated().unwrap());

    let mapping = pin.map(2 * page, None).unwrap();
    assert_eq!(mapping.caching(), Caching::WriteCombined);
    // SAFETY: byte 100 is in the mapping; it is shared memory, accessed as an atomic.
    unsafe { AtomicU8::from_ptr(mapping.as_ptr().add(100)) }.store(42, Ordering::Relaxed);
    assert_eq!(cuda.gpu_reads(100), 42);
}

#[test]
fn the_last_byte_of_an_allocation_can_be_pinned() {
    let cuda = FakeCuda::new(|_| {});
    let page = host_page();
    cuda.open()
        .unwrap()
        .pin(&request(BASE + SIZE - 1, 1))
        .unwrap();
    assert_eq!(cuda.exported(), (BASE + SIZE - page, page, 0));
    assert!(matches!(
        cuda.open().unwrap().pin(&request(BASE + SIZE - 1, 2)),
        Err(Error::PastAllocation { .. })
    ));
}

#[test]
fn a_forced_pcie_mapping_sets_the_flag() {
    let cuda = FakeCuda::new(|_| {});
    let options = PinOptions::new().with_bus(Bus::Pcie);
    let backend = cuda.open().unwrap();
    backend
        .pin(&PinRequest {
            options,
            ..request(BASE, 1)
        })
        .unwrap();
    assert_eq!(cuda.exported(), (BASE, host_page(), 1));
    assert!(backend.attributes().force_pcie);
}

#[test]
fn the_mapping_outlives_the_pin_and_its_descriptor() {
    let cuda = FakeCuda::new(|_| {});
    let pin = cuda.open().unwrap().pin(&request(BASE, 1)).unwrap();
    let mapping = pin.map(host_page(), None).unwrap();
    drop(pin);
    // SAFETY: byte 0 is in the mapping; it is shared memory, accessed as an atomic.
    unsafe { AtomicU8::from_ptr(mapping.as_ptr()) }.store(9, Ordering::Relaxed);
    assert_eq!(cuda.gpu_reads(0), 9);
}

#[test]
fn a_driver_that_refuses_the_mmap_is_reported_with_the_required_version() {
    let cuda = FakeCuda::new(|cuda| cuda.maps = false);
    let pin = cuda.open().unwrap().pin(&request(BASE, 1)).unwrap();
    let text = pin.map(host_page(), None).unwrap_err().to_string();
    assert!(
        text.contains("refused the mmap") && text.contains("610.43.02"),
        "{text}"
    );

    for errno in [524, libc::EOPNOTSUPP, libc::EINVAL] {
        let error = explain(Error::os("mmap", io::Error::from_raw_os_error(errno)));
        assert!(
            matches!(
                error,
                Error::DmaBufMmap {
                    source: Some(_),
                    ..
                }
            ),
            "{error}"
        );
    }
    let full = explain(Error::os(
        "mmap",
        io::Error::from_raw_os_error(libc::ENOMEM),
    ));
    assert!(matches!(full, Error::Os { .. }), "{full}");
}

#[test]
fn a_coherent_gpu_maps_cached_unless_pcie_is_forced() {
    let cuda = FakeCuda::new(|cuda| cuda.coherent = true);
    let backend = cuda.open().unwrap();
    let forced = PinOptions::new().with_bus(Bus::Pcie);
    for (options, offered, other) in [
        (PinOptions::new(), Caching::Cached, Caching::WriteCombined),
        (forced, Caching::WriteCombined, Caching::Cached),
    ] {
        let pin = backend
            .pin(&PinRequest {
                options,
                ..request(BASE, 1)
            })
            .unwrap();
        for wanted in [None, Some(offered)] {
            assert_eq!(pin.map(host_page(), wanted).unwrap().caching(), offered);
        }
        for wanted in [other, Caching::Device] {
            let refused = pin.map(host_page(), Some(wanted)).unwrap_err();
            assert!(matches!(refused, Error::Caching { .. }), "{refused}");
        }
    }
}

#[test]
fn memory_that_is_freed_and_allocated_again_during_the_export_is_not_pinned() {
    let cuda = FakeCuda::new(|cuda| cuda.reused = true);
    let refused = cuda.open().unwrap().pin(&request(BASE, 1)).unwrap_err();
    assert!(
        matches!(refused, Error::Gpu(gdr_cuda::Error::UnknownPointer { .. })),
        "{refused}"
    );
}

#[test]
fn a_cached_mapping_is_refused() {
    let cuda = FakeCuda::new(|_| {});
    let pin = cuda.open().unwrap().pin(&request(BASE, 1)).unwrap();
    let error = pin.map(host_page(), Some(Caching::Cached)).unwrap_err();
    assert!(
        matches!(
            error,
            Error::Caching {
                wanted: Caching::Cached,
                ..
            }
        ),
        "{error}"
    );
}
