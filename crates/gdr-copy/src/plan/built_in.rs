//! Costs of copies on machines that have not been calibrated.

use std::num::NonZeroU16;

use super::calibration::{Calibration, Series};
use super::curve::{CostCurve, CostPoint};
use super::path::{CopyDirection, CopyPath, HostMemory};

use CopyDirection::{FromGpu, ToGpu};
use HostMemory::{PageLocked, Pageable};

/// The kinds of machines with built-in costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Machine {
    /// A GPU on PCIe, whose mapping is write-combined or device memory.
    Pcie,
    /// A GPU on a coherent link, whose memory the CPU caches.
    Coherent,
    /// The simulation: its mappings are host memory.
    Simulated,
}

impl Machine {
    /// Returns its name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pcie => "pcie",
            Self::Coherent => "coherent",
            Self::Simulated => "simulated",
        }
    }
}

/// The costs of a path as points, each in bytes and nanoseconds.
type Costs = (CopyDirection, HostMemory, CopyPath, &'static [(u64, f64)]);

const fn cpu(threads: u16) -> CopyPath {
    match NonZeroU16::new(threads) {
        Some(threads) => CopyPath::cpu(threads),
        None => CopyPath::ONE_THREAD,
    }
}

const K: u64 = 1 << 10;
const M: u64 = 1 << 20;

/// H200: 2.1 us for 8 bytes. The others are estimates, from 16 bytes over PCIe per 8 bytes of payload, and the CPU's
/// loads.
const RESIDENT: &[(u64, f64)] = &[(64, 2.3e3), (4 * K, 3.2e3), (32 * K, 9e3), (64 * K, 18e3)];

/// The cost in nanoseconds of a copy from the GPU that is queued among others. The call that queues it takes 1.5 us,
/// but on an H100 READs of 1 KiB were slower with queued copies than with loads, which take 1.6 us.
const QUEUED_COPY: f64 = 2.5e3;

/// H200 on PCIe Gen5 x16, AVX-512, driver 580.159.04: stores of 64 B in 119 ns and of 4 MiB at 17 GB/s by one thread,
/// 31 GB/s by two and 34 GB/s by four; loads at 0.8 GB/s per thread; cuMemcpy of page-locked memory in 6.8 us, and 83
/// us for 4 MiB. Pageable memory adds the CPU's copy at 10 GB/s, which overlaps with the engine's except for its first
/// chunk. Several threads add a wake-up.
const PCIE: &[Costs] = &[
    (
        ToGpu,
        PageLocked,
        cpu(1),
        &[(64, 119.0), (K, 172.0), (4 * K, 292.0), (4 * M, 247e3)],
    ),
    (ToGpu, PageLocked, cpu(2), &[(64, 8e3), (4 * M, 143e3)]),
    (ToGpu, PageLocked, cpu(4), &[(64, 12e3), (4 * M, 135e3)]),
    (
        ToGpu,
        PageLocked,
        CopyPath::CopyEngine,
        &[(K, 8e3), (16 * K, 10e3), (256 * K, 13.5e3), (4 * M, 86e3)],
    ),
    (
        ToGpu,
        Pageable,
        cpu(1),
        &[(64, 119.0), (K, 172.0), (4 * K, 292.0), (4 * M, 247e3)],
    ),
    (ToGpu, Pageable, cpu(2), &[(64, 8e3), (4 * M, 143e3)]),
    (ToGpu, Pageable, cpu(4), &[(64, 12e3), (4 * M, 135e3)]),
    (
        ToGpu,
        Pageable,
        CopyPath::CopyEngine,
        &[
            (K, 8.2e3),
            (16 * K, 11.6e3),
            (256 * K, 35e3),
            (4 * M, 440e3),
        ],
    ),
    (
        FromGpu,
        PageLocked,
        cpu(1),
        &[(64, 1e3), (K, 1.6e3), (4 * K, 5.1e3), (M, 1.31e6)],
    ),
    (FromGpu, PageLocked, cpu(4), &[(64, 14e3), (M, 340e3)]),
    (FromGpu, PageLocked, CopyPath::Resident, RESIDENT),
    (FromGpu, Pageable, CopyPath::Resident, RESIDENT),
    (
        FromGpu,
        PageLocked,
        CopyPath::CopyEngine,
        &[
            (K, 7.5e3),
            (16 * K, 7.8e3),
            (256 * K, 12.3e3),
            (4 * M, 84e3),
        ],
    ),
    (
        FromGpu,
        Pageable,
        cpu(1),
        &[(64, 1e3), (K, 1.6e3), (4 * K, 5.1e3), (M, 1.31e6)],
    ),
    (FromGpu, Pageable, cpu(4), &[(64, 14e3), (M, 340e3)]),
    (
        FromGpu,
        Pageable,
        CopyPath::CopyEngine,
        &[(K, 7.7e3), (16 * K, 9.4e3), (256 * K, 34e3), (4 * M, 430e3)],
    ),
];

/// Estimates, not measurements: the CPU loads and stores GPU memory like the memory of another socket.
const COHERENT: &[Costs] = &[
    (
        ToGpu,
        PageLocked,
        cpu(1),
        &[(64, 60.0), (4 * K, 300.0), (4 * M, 210e3)],
    ),
    (
        ToGpu,
        PageLocked,
        CopyPath::CopyEngine,
        &[(K, 8e3), (256 * K, 10e3), (4 * M, 30e3)],
    ),
    (
        ToGpu,
        Pageable,
        cpu(1),
        &[(64, 60.0), (4 * K, 300.0), (4 * M, 210e3)],
    ),
    (
        FromGpu,
        PageLocked,
        cpu(1),
        &[(64, 800.0), (4 * K, 1.5e3), (4 * M, 280e3)],
    ),
    (
        FromGpu,
        PageLocked,
        CopyPath::CopyEngine,
        &[(K, 8e3), (256 * K, 10e3), (4 * M, 30e3)],
    ),
    (
        FromGpu,
        Pageable,
        cpu(1),
        &[(64, 800.0), (4 * K, 1.5e3), (4 * M, 280e3)],
    ),
];

/// Copies within host memory, for which no path is faster than the CPU.
const SIMULATED: &[Costs] = &[
    (ToGpu, PageLocked, cpu(1), &[(64, 20.0), (4 * M, 420e3)]),
    (ToGpu, Pageable, cpu(1), &[(64, 20.0), (4 * M, 420e3)]),
    (FromGpu, PageLocked, cpu(1), &[(64, 20.0), (4 * M, 420e3)]),
    (FromGpu, Pageable, cpu(1), &[(64, 20.0), (4 * M, 420e3)]),
];

impl Calibration {
    /// Returns the costs on a machine that has not been calibrated.
    pub fn built_in(machine: Machine) -> Self {
        let (costs, queued_copy) = match machine {
            Machine::Pcie => (PCIE, Some(QUEUED_COPY)),
            Machine::Coherent => (COHERENT, Some(QUEUED_COPY)),
            Machine::Simulated => (SIMULATED, None),
        };
        let mut calibration = Self::new();
        for &(direction, host, path, points) in costs {
            let points = points.iter().map(|&(len, ns)| CostPoint { len, ns });
            if let Ok(curve) = CostCurve::new(points) {
                let series = Series {
                    direction,
                    host,
                    path,
                };
                calibration.set(series, curve);
            }
        }
        if let Some(ns) = queued_copy {
            calibration.set_queued_copy(ns);
        }
        calibration
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_machine_has_the_costs_of_cpu_copies_of_every_kind() {
        for (machine, costs) in [
            (Machine::Pcie, PCIE),
            (Machine::Coherent, COHERENT),
            (Machine::Simulated, SIMULATED),
        ] {
            let calibration = Calibration::built_in(machine);
            assert_eq!(calibration.curves().count(), costs.len(), "{machine:?}");
            for direction in CopyDirection::ALL {
                for host in HostMemory::ALL {
                    let series = Series {
                        direction,
                        host,
                        path: CopyPath::ONE_THREAD,
                    };
                    assert!(calibration.curve(&series).is_some(), "{series:?}");
                }
            }
        }
    }
}
