-- Gives a lease back (L16).
return done(release(arg(), tonumber(arg()), arg(), arg()))
