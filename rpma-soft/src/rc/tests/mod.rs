//! The queue pair, driven two-ended with simulated time and memory.

mod errors;
mod flush;
mod memory;
mod order;
mod pair;
mod posting;
mod rnr;
mod schedule;
mod shared;
mod table;
