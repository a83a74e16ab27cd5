"""What measures and reproduces: one folder per question. The product never imports it."""
