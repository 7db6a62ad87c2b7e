//! A diagnosis, written for people and for programs.

pub mod html;
pub mod json;
pub mod junit;
pub mod markdown;
mod paragraph;
mod phrases;
pub mod prometheus;
pub mod text;

pub(crate) use phrases::terms;
