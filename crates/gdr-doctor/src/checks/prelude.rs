//! What almost every check uses.

pub(super) use gdr_node::pci::{DeviceId, Function, VendorId};
pub(super) use gdr_node::{Absence, Bdf, Datum, DatumExt, GpuDevice, RdmaDevice, virtual_path};

pub(super) use crate::check::{Check, CheckId, Workload};
pub(super) use crate::context::{Context, Nic, Pair};
pub(super) use crate::facts::{Container, Flavour, Machine, NvidiaDriver, Version};
pub(super) use crate::finding::{Finding, Subject, Verdict};
pub(super) use crate::fix::{Action, Effect, Fix, Persistence, Privilege, Risk};
pub(super) use crate::runner::{self, Judgement, Known, Scope, Unjudged};

pub(super) use super::network::ports::Which;
