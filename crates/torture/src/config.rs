//! The configurations of a run: a calm chain that nothing touches, and everything else.

use std::path::Path;

/// What a configuration has besides the calm chain and the disturbed ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Variant {
    /// A second chain that comes and goes.
    pub spare: bool,
    /// The interface and the namespace that come and go are ports.
    pub link: bool,
    /// An NF that cannot start: the change must be undone.
    pub broken: bool,
    /// The calm chain gets no packets.
    pub quiet: bool,
}

/// The interface that comes and goes, and the namespace, of this process.
pub fn interface() -> String {
    format!("nvt{}", std::process::id())
}

/// Groups, NFs and chains without ports: no device holds a buffer.
pub fn without_ports(program: &Path) -> String {
    HEAD.to_owned() + &nfs(program)
}

/// A configuration. `folder` has the guest's socket.
pub fn text(program: &Path, folder: &Path, variant: Variant) -> String {
    let mut text = HEAD.to_owned() + &nfs(program);
    // The calm source waits rather than lose a packet.
    text += &lane(
        "calm",
        "lossless = true\nrate = 20000",
        if variant.quiet { "drop = true" } else { "chain = \"calm\"" },
    );
    text += &lane("wild", "rate = 50000", "chain = \"wild\"");
    text += &lane("rogue", "rate = 20000", "chain = \"rogue\"");
    text += "\n[[chain]]\nname = \"calm\"\nhops = [\"calm-nf\"]\noutput = \"calm-out\"\n\
             \n[[chain]]\nname = \"wild\"\nhops = [\"wild-nf\"]\non_failure = \"bypass\"\noutput = \"wild-out\"\n\
             \n[[chain]]\nname = \"rogue\"\nhops = [\"rogue\"]\non_failure = \"bypass\"\noutput = \"rogue-out\"\n";
    text += &format!(
        "\n[[port]]\nname = \"guest\"\nkind = \"vhost-user\"\npath = \"{}\"\n\
         \n[[rule]]\nname = \"guest\"\nfrom = \"guest\"\ndrop = true\n",
        folder.join("guest.sock").display()
    );
    if variant.link {
        text += &format!(
            "\n[[port]]\nname = \"link\"\nkind = \"af_xdp\"\ninterface = \"{}\"\n\
             \n[[port]]\nname = \"beat\"\nkind = \"source\"\nrate = 1000\n\
             \n[[rule]]\nname = \"beat\"\nfrom = \"beat\"\nout = \"link\"\n\
             \n[[rule]]\nname = \"link\"\nfrom = \"link\"\ndrop = true\n\
             \n[[port]]\nname = \"box\"\nkind = \"container\"\nnamespace = \"{}\"\naddresses = [\"10.94.0.1/24\"]\n\
             gateways = [\"10.94.0.2\"]\n\
             \n[[rule]]\nname = \"box\"\nfrom = \"box\"\ndrop = true\n",
            interface(),
            interface()
        );
    }
    if variant.spare {
        text += &lane("spare", "rate = 5000", "chain = \"spare\"");
        text += "\n[[nf]]\nrole = \"spare-nf\"\ngroup = \"wild\"\ncommand = [\"netvm-simple-forward\"]\n\
                 \n[[chain]]\nname = \"spare\"\nhops = [\"spare-nf\"]\noutput = \"spare-out\"\n";
    }
    if variant.broken {
        text += "\n[[nf]]\nrole = \"broken\"\ngroup = \"wild\"\ncommand = [\"/bin/false\"]\n";
    }
    text
}

const HEAD: &str = "[engine]\nidle = \"adaptive\"\n\
    \n[[group]]\nname = \"calm\"\nbuffers = 4096\n\
    \n[[group]]\nname = \"wild\"\nbuffers = 4096\n\
    \n[[group]]\nname = \"rogue\"\nbuffers = 4096\n";

fn nfs(program: &Path) -> String {
    format!(
        "\n[[nf]]\nrole = \"calm-nf\"\ngroup = \"calm\"\ncommand = [\"netvm-simple-forward\"]\n\
         \n[[nf]]\nrole = \"wild-nf\"\ngroup = \"wild\"\nreplicas = 2\ncommand = [\"netvm-simple-forward\"]\n\
         \n[[nf]]\nrole = \"rogue\"\ngroup = \"rogue\"\n\
         \n[[nf]]\nrole = \"glutton\"\ngroup = \"wild\"\nmemory = 64\ntasks = 32\ncommand = [{:?}, \"rogue\", \"glutton\"]\n",
        program.display().to_string()
    )
}

fn lane(name: &str, source: &str, rule: &str) -> String {
    format!(
        "\n[[port]]\nname = \"{name}-in\"\nkind = \"source\"\nflows = 64\n{source}\n\
         \n[[port]]\nname = \"{name}-out\"\nkind = \"sink\"\n\
         \n[[rule]]\nname = \"{name}\"\nfrom = \"{name}-in\"\n{rule}\n"
    )
}
