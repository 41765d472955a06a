//! Linker flags of the preload library.

fn main() {
    // Bound at load: a lazy binding in the fault handler would walk heap memory that may be far.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,now");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,relro");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    // Before the constructors of allocators, whose memory is to be managed.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,initfirst");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcanvas.so");
}
