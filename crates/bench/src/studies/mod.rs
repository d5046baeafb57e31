//! Measurements for studies (`./dev study`): a command sets one combination up, takes rates on its standard input, and
//! prints the result of each as a JSON object in a line.

pub mod network;
pub mod routers;
mod trial;
pub mod way;
