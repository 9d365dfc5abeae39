//! Migrations are embedded by a macro that Cargo does not see through.

fn main() {
    println!("cargo:rerun-if-changed=../../migrations");
}
