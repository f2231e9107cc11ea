"""What browsers load of the service: templates, style and scripts, without a build chain."""
