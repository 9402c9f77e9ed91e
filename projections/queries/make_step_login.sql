select renew_step_login()
